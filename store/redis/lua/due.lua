-- KEYS of each shard the index, and the queues of what is to be run and to be sent.
-- ARGV limit. Returns of each shard a list: how long it is until the first of either
-- queue is due, '' if it is empty, and then the identities whose leases seem to have
-- run out.
local all, left = {}, tonumber(ARGV[1])
for i = 1, #KEYS, 3 do
	local list = {}
	if left > 0 then
		list = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', '(' .. string.format('%d', now), 'LIMIT', 0, left)
		left = left - #list
	end
	for q = 2, 1, -1 do
		local first = redis.call('ZRANGE', KEYS[i + q], 0, 0, 'WITHSCORES')
		table.insert(list, 1, first[2] and first[2] - now or '')
	end
	all[(i + 2) / 3] = list
end
return all
