-- KEYS record. ARGV lease, fence. Returns 1, or 0 if it is lost. The index keeps an
-- earlier time, which a sweep puts right.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:byte(2) ~= RUNNING or rec:sub(85, 92) ~= ARGV[2] then return 0 end
redis.call('SETRANGE', KEYS[1], 104, struct.pack('>I8', now + ARGV[1]))
return 1
