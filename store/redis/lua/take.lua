-- KEYS record, result, outbox, index, fence, queues, perhaps schedules. ARGV id, owner,
-- lease, channel, whether the run may be repeated, shard.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec then return {now} end
local owner = rec:sub(37, 52)
if rec:byte(2) == RUNNING and owner ~= ARGV[2] and struct.unpack('>I8', rec, 105) <= now then
	rec = markUnknown(rec, KEYS[1], KEYS[4], ARGV[4], ARGV[1])
end
if rec:byte(2) == ACCEPTED and owner ~= ARGV[2] and struct.unpack('>I8', rec, 105) <= now then
	local last, tries = struct.unpack('>I8I4', rec, 85)
	local lease = now + ARGV[3]
	rec = become('\1', rec) .. rec:sub(4, 36) .. ARGV[2] .. rec:sub(53, 84) ..
		struct.pack('>I8I4I8', grant(KEYS[5], last), tries + 1, now) .. tail(lease, 0, 0, 0) .. label(rec)
	if ARGV[5] == '1' then
		rec = rec:sub(1, 2) .. string.char(rec:byte(3) + REPEATABLE) .. rec:sub(4)
		wait(KEYS[6], queuename(rec), ARGV[1], lease, KEYS[7], ARGV[6])
	else
		redis.call('ZREM', queued(KEYS[6], queuename(rec)), ARGV[1])
	end
	redis.call('SET', KEYS[1], rec)
	redis.call('ZADD', KEYS[4], string.format('%d', lease), ARGV[1])
end
return whole(rec, KEYS[2], KEYS[3])
