-- KEYS record, result. ARGV fence. Returns 1, or 0 if fenced.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[1] or not settled(rec:byte(2)) then return 0 end
local flags = rec:byte(3)
if flags % 2 == 1 then return 1 end
redis.call('SETRANGE', KEYS[1], 2, string.char(flags + 1))
if struct.unpack('>I8', rec, 121) > now then
	redis.call('SETRANGE', KEYS[1], 120, struct.pack('>I8', now))
end
redis.call('UNLINK', KEYS[2])
return 1
