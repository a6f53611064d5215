-- KEYS record, result, index, list, the queues of operations to run; with an outbox, too
-- that, its queues and perhaps schedules. ARGV id, fence, state, gone, result, keep result, keep tombstone, channel;
-- with an outbox, also that and the shard. Returns 1, or 0 if fenced.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[2] then return 0 end
local state, flags, gone = rec:byte(2), rec:byte(3), ARGV[4] == '1'
if state == ARGV[3]:byte() then -- the reply to the first time was lost
	if came(rec, KEYS[2], gone, ARGV[5]) then return 1 end
	return 0
end
if state ~= RUNNING and state ~= UNKNOWN then return 0 end
local expires, forget = now + ARGV[6], now + ARGV[7]
if ARGV[9] then
	send(rec, ARGV[3], gone, expires)
else
	local is = '\0'
	if gone then is = '\1' end
	redis.call('SET', KEYS[1], '\1' .. ARGV[3] .. is .. rec:sub(4, 104) .. tail(0, now, expires, forget) .. label(rec), 'PXAT', ms(forget))
end
if not gone then
	redis.call('SET', KEYS[2], ARGV[5], 'PXAT', ms(expires))
elseif flags >= 4 then
	redis.call('UNLINK', KEYS[2])
end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
if repeatable(rec) then redis.call('ZREM', queued(KEYS[5], queuename(rec)), ARGV[1]) end
ended(rec, ARGV[8], ARGV[1])
return 1
