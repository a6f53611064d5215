-- KEYS schedules. ARGV limit of all, limit of names, the first name, and perhaps names.
-- Without names it takes all names with a queue. Returns the first name that it did not read,
-- '' if there is none, and for each name the name and a list of the shards that are due, each
-- followed by its time in the schedule.
local most, names, next = tonumber(ARGV[2]), {}, ''
for i = 4, #ARGV do names[#names + 1] = ARGV[i] end
local all = #names == 0
if all then
	names = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. ARGV[3], '+', 'LIMIT', 0, most + 1)
	if #names > most then next = table.remove(names) end
end
local found, till = {next}, string.format('%d', now)
local each = math.ceil(ARGV[1] / math.max(#names, 1))
for _, name in ipairs(names) do
	local schedule = queued(KEYS[1], name)
	local some = redis.call('ZRANGEBYSCORE', schedule, '-inf', till, 'WITHSCORES', 'LIMIT', 0, each)
	found[#found + 1] = name
	found[#found + 1] = some
	if all and #some == 0 and redis.call('EXISTS', schedule) == 0 then
		redis.call('ZREM', KEYS[1], name)
	end
end
return found
