-- KEYS schedules. ARGV limit of all, how many names at most, the first of them, and perhaps
-- names. Without any, they are those under which something waits. Returns the first of
-- those that it did not look at, '' if there is none, and of each name it and the
-- shards that have something due, behind each since when, as it is noted.
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
