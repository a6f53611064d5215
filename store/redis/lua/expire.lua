-- KEYS record, result, index, list, outbox. ARGV id, fence, owner, keep. Returns 1, or 0 if fenced. The owner and keep are
-- for a record that cannot be read: of it a tombstone remains, and a place in a queue until it
-- is due.
local rec, damaged, was = load(KEYS[1])
if was then
	local fence = string.rep('\0', 8)
	if #was >= 92 then fence = was:sub(85, 92) end
	if fence ~= ARGV[2] then return 0 end
	local fingerprint, scope, attempt = string.rep('\0', 33), string.rep('\0', 32), 1
	if #was >= 136 then fingerprint, scope = was:sub(4, 36), was:sub(53, 84) end
	local forget = now + ARGV[4]
	redis.call('SET', KEYS[1], '\1\3\1' .. fingerprint .. ARGV[3] .. scope .. ARGV[2] ..
		struct.pack('>I4I8', attempt, now) .. tail(0, now, now, forget), 'PXAT', ms(forget))
	redis.call('UNLINK', KEYS[2], KEYS[5])
	for _, of in ipairs({3, 4}) do redis.call('ZREM', KEYS[of], ARGV[1]) end
	return 1
end
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[2] or not settled(rec:byte(2)) then return 0 end
local flags = rec:byte(3)
if flags % 2 == 1 then return 1 end
redis.call('SETRANGE', KEYS[1], 2, string.char(flags + 1))
if struct.unpack('>I8', rec, 121) > now then
	redis.call('SETRANGE', KEYS[1], 120, struct.pack('>I8', now))
end
redis.call('UNLINK', KEYS[2])
return 1
