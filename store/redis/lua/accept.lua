-- KEYS record, result, index, list, fence, queues, perhaps schedules. ARGV id, fingerprint, scope,
-- owner, channel, work, after, shard, label, queued.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
local last, attempt, scope, flags = 0, 0, ARGV[3], WORK
if rec then
	local state, owner = rec:byte(2), rec:sub(37, 52)
	if rec:sub(4, 36) ~= ARGV[2] then return full(rec, KEYS[2]) end
	if state == RUNNING and owner ~= ARGV[4] and struct.unpack('>I8', rec, 105) <= now then
		return {now, markUnknown(rec, KEYS[1], KEYS[3], ARGV[5], ARGV[1])}
	end
	if state ~= RETRYABLE or owner == ARGV[4] then return full(rec, KEYS[2]) end
	last, attempt = struct.unpack('>I8I4', rec, 85)
	scope = rec:sub(53, 84)
	if has(rec, NOTES) then flags = WORK + NOTES end
end
rec = '\2\6' .. string.char(flags) .. ARGV[2] .. ARGV[4] .. scope .. struct.pack('>I8I4I8', grant(KEYS[5], last), attempt, now) .. tail(now + ARGV[7], 0, 0, 0) .. ARGV[9]
redis.call('SET', KEYS[1], rec)
if flags == WORK then
	redis.call('UNLINK', KEYS[2])
else
	redis.call('PERSIST', KEYS[2])
end
redis.call('HSET', KEYS[2], 'w', ARGV[6])
redis.call('ZADD', KEYS[4], '0', ARGV[1])
wait(KEYS[6], queuename(rec), ARGV[1], now + ARGV[10], KEYS[7], ARGV[8])
return {now, rec}
