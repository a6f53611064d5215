-- KEYS queues. ARGV limit. Returns of each queue a list: now, when the next record
-- will be, 0 if there is none, and then the identities that are due, each with its time.
local all = {}
for i, queue in ipairs(KEYS) do
	local till = string.format('%d', now)
	local due = redis.call('ZRANGEBYSCORE', queue, '-inf', till, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
	local later = redis.call('ZRANGEBYSCORE', queue, '(' .. till, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
	local list = {now, later[2] and tonumber(later[2]) or 0}
	for j = 1, #due, 2 do
		list[j + 2], list[j + 3] = due[j], tonumber(due[j + 1])
	end
	all[i] = list
end
return all
