-- KEYS record, index, list. ARGV id, fence, keep, channel. Returns 1, or 0 if fenced.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[2] then return 0 end
local state = rec:byte(2)
if state == RETRYABLE then return 1 end -- the reply to the first time was lost
if state ~= RUNNING and state ~= UNKNOWN then return 0 end
local forget = now + ARGV[3]
redis.call('SET', KEYS[1], '\1\4\0' .. rec:sub(4, 104) .. tail(0, now, 0, forget), 'PXAT', ms(forget))
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
ended(rec, ARGV[4], ARGV[1])
return 1
