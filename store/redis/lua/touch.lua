-- KEYS record. ARGV fence, state, replicas. Writes a record again unchanged, so
-- that WAIT has a write to wait for; or if replicas is not 0, notes in a settled
-- one how many have it. Returns 1, or 0 if the record has changed.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[1] or rec:byte(2) ~= ARGV[2]:byte() then return 0 end
if ARGV[3] == '0' then
	redis.call('SETRANGE', KEYS[1], 0, rec:sub(1, 1))
elseif settled(rec:byte(2)) then
	redis.call('SETRANGE', KEYS[1], 104, struct.pack('>I8', ARGV[3]))
end
return 1
