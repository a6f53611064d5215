-- KEYS record, result, outbox, list, queues. ARGV id, fence, gone, result, keep result,
-- keep tombstone. Returns 0 if fenced.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[2] then return 0 end
local state, gone = rec:byte(2), ARGV[3] == '1'
if state == ACCEPTED then
	local expires, forget, is = now + ARGV[5], now + ARGV[6], '\0'
	if gone then is = '\1' end
	redis.call('ZREM', queued(KEYS[5], queuename(rec)), ARGV[1])
	rec = '\1\3' .. is .. rec:sub(4, 104) .. tail(0, now, expires, forget) .. label(rec)
	redis.call('SET', KEYS[1], rec, 'PXAT', ms(forget))
	redis.call('UNLINK', KEYS[2])
	if not gone then redis.call('SET', KEYS[2], ARGV[4], 'PXAT', ms(expires)) end
	redis.call('ZREM', KEYS[4], ARGV[1])
elseif state == RUNNING and has(rec, WORK) then
	if not has(rec, CANCELLING) then
		local flags = string.char(rec:byte(3) + CANCELLING)
		rec = rec:sub(1, 2) .. flags .. rec:sub(4)
		redis.call('SETRANGE', KEYS[1], 2, flags)
	end
elseif state ~= FAILED then
	return 0
elseif not came(rec, KEYS[2], gone, ARGV[4]) then
	return 0
end
return whole(rec, KEYS[2], KEYS[3])
