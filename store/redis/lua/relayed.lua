-- KEYS record, result, outbox, queues. ARGV id, fence, keep. Returns 1, or 0 if fenced.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[2] or not settled(rec:byte(2)) then return 0 end
if not has(rec, WORK) then return 1 end -- the reply to the first time was lost
local forget = now + ARGV[3]
redis.call('SET', KEYS[1], '\1' .. rec:sub(2, 2) .. string.char(rec:byte(3) - WORK) .. rec:sub(4, 128) .. struct.pack('>I8', forget) .. label(rec), 'PXAT', ms(forget))
redis.call('PEXPIREAT', KEYS[2], ms(forget), 'LT')
redis.call('UNLINK', KEYS[3])
redis.call('ZREM', queued(KEYS[4], queuename(rec)), ARGV[1])
return 1
