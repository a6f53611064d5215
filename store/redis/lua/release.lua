-- KEYS record, result, index, list, queues, perhaps schedules. ARGV id, fence, channel,
-- shard, keep, after. Without keep only an accepted operation is released. Returns
-- 0 if fenced, the name of a record that waits for a worker, else 1.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[2] then return 0 end
local state, waits = rec:byte(2), has(rec, WORK)
if settled(state) or ARGV[5] == '' and not waits then return 0 end
if state == RETRYABLE then return 1 end -- the reply to the first time was lost
if state == ACCEPTED then return queuename(rec) end
if waits then
	redis.call('SET', KEYS[1], become('\6', rec) .. rec:sub(4, 104) .. tail(now + ARGV[6], now, 0, 0) .. label(rec))
	wait(KEYS[5], queuename(rec), ARGV[1], now + ARGV[6], KEYS[6], ARGV[4])
	redis.call('ZREM', KEYS[3], ARGV[1])
	ended(rec, ARGV[3], ARGV[1])
	return queuename(rec)
end
local forget = now + ARGV[5]
local dies = ms(ARGV[5] == '0' and now - 2000 or forget) -- at once, not a millisecond later
redis.call('SET', KEYS[1], become('\4', rec) .. rec:sub(4, 104) .. tail(0, now, 0, forget) .. label(rec), 'PXAT', dies)
if has(rec, NOTES) then redis.call('PEXPIREAT', KEYS[2], dies) end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
ended(rec, ARGV[3], ARGV[1])
return 1
