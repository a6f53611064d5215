-- KEYS record, history. ARGV fence, attempt, entry, start, most, longest. The entry begins with the
-- fence, and has the time put behind it. Returns 1. If there is no record it deletes the history, and returns 0.
local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then
	redis.call('DEL', KEYS[2])
	return 0
end
local list = redis.call('LRANGE', KEYS[2], 0, -1)
local keep = {}
for _, entry in ipairs(list) do
	if tonumber(ARGV[2]) > 1 or entry:sub(1, 8) >= ARGV[1] then keep[#keep + 1] = entry end
end
while #keep >= tonumber(ARGV[5]) do table.remove(keep, ARGV[4] + 1) end
keep[#keep + 1] = ARGV[1] .. struct.pack('>I8', now) .. ARGV[3]
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[2], unpack(keep))
redis.call('PEXPIRE', KEYS[2], ttl >= 0 and ttl + 1 or ARGV[6])
return 1
