-- KEYS record and index of each. ARGV lease, then id and fence of each. Returns the
-- places of the lost ones, and negative places of the unreadable ones.
local but = {}
local lease = now + ARGV[1]
local packed, score = struct.pack('>I8', lease), string.format('%d', lease)
for i = 1, #KEYS, 2 do
	local rec, damaged = load(KEYS[i])
	if damaged then
		but[#but + 1] = -(i + 1) / 2
	elseif rec and rec:byte(2) == RUNNING and rec:sub(85, 92) == ARGV[i + 2] then
		redis.call('SETRANGE', KEYS[i], 104, packed)
		redis.call('ZADD', KEYS[i + 1], score, ARGV[i + 1])
	else
		but[#but + 1] = (i + 1) / 2
	end
end
return but
