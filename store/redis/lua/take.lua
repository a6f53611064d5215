-- KEYS record, result, outbox, index, queue. ARGV id, owner, lease, channel.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec then return {now} end
local state, owner = rec:byte(2), rec:sub(37, 52)
if state == RUNNING and owner ~= ARGV[2] and struct.unpack('>I8', rec, 105) <= now then
	rec = park(rec, KEYS[1], KEYS[4], ARGV[4], ARGV[1])
elseif state == ACCEPTED and owner ~= ARGV[2] then
	local last, tries = struct.unpack('>I8I4', rec, 85)
	local lease = now + ARGV[3]
	rec = become('\1', rec) .. rec:sub(4, 36) .. ARGV[2] .. rec:sub(53, 84) ..
		struct.pack('>I8I4I8', math.max(now, last + 1), tries + 1, now) .. tail(lease, 0, 0, 0)
	redis.call('SET', KEYS[1], rec)
	redis.call('ZADD', KEYS[4], string.format('%d', lease), ARGV[1])
	redis.call('ZREM', KEYS[5], ARGV[1])
end
return whole(rec, KEYS[2], KEYS[3])
