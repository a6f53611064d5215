-- KEYS of each shard: index, queues of jobs, queues of messages. ARGV limit, limit of names of
-- each. Returns for each shard three lists: the identities whose leases seem to have expired, and
-- for either kind of queue the names with a queue (random ones if there are more), each followed
-- by the time until its first record is due.
local all, left = {}, tonumber(ARGV[1])
for i = 1, #KEYS, 3 do
	local lists = {{}, {}, {}}
	if left > 0 then
		lists[1] = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', '(' .. string.format('%d', now), 'LIMIT', 0, left)
		left = left - #lists[1]
	end
	for q = 1, 2 do
		local list = lists[q + 1]
		for _, name in ipairs(redis.call('ZRANDMEMBER', KEYS[i + q], ARGV[2])) do
			local first = redis.call('ZRANGE', queued(KEYS[i + q], name), 0, 0, 'WITHSCORES')
			if first[2] then
				list[#list + 1] = name
				list[#list + 1] = first[2] - now
			else
				redis.call('ZREM', KEYS[i + q], name)
			end
		end
	end
	all[(i + 2) / 3] = lists
end
return all
