-- KEYS record. ARGV fence. Asks the caller that ends the run to publish.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec then return {now} end
if rec:byte(2) == RUNNING and rec:byte(3) % 4 == 0 and rec:sub(85, 92) == ARGV[1] then
	redis.call('SETRANGE', KEYS[1], 2, string.char(rec:byte(3) + 2))
end
return {now, rec}
