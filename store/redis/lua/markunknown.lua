-- KEYS record, index and list of each. ARGV channel, then the id of each. Returns how
-- many are unknown now. An index may be stale, a record is not.
local marked = 0
for i = 1, #KEYS, 3 do
	local key, index, id = KEYS[i], KEYS[i + 1], ARGV[(i + 2) / 3 + 1]
	local rec, damaged = load(key)
	if damaged then
		redis.call('ZADD', index, 'inf', id) -- for an operator; the sweep continues
	elseif rec and rec:byte(2) == RUNNING then
		local lease = struct.unpack('>I8', rec, 105)
		if lease <= now then
			if markUnknown(rec, key, index, ARGV[1], id):byte(2) == UNKNOWN then marked = marked + 1 end
		else
			redis.call('ZADD', index, string.format('%d', lease), id)
		end
	elseif rec and rec:byte(2) == UNKNOWN then
		redis.call('ZADD', index, 'inf', id)
	else
		redis.call('ZREM', index, id)
		if not rec or rec:byte(2) ~= ACCEPTED then redis.call('ZREM', KEYS[i + 2], id) end
	end
end
return marked
