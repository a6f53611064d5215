-- KEYS record, result, index, list. ARGV id, fingerprint, scope, owner, lease, channel.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
local fence, attempt = now, 1
if rec then
	local state, owner = rec:byte(2), rec:sub(37, 52)
	if rec:sub(4, 36) ~= ARGV[2] then return full(rec, KEYS[2]) end
	if state == RUNNING and owner ~= ARGV[4] and struct.unpack('>I8', rec, 105) <= now then
		return {now, park(rec, KEYS[1], KEYS[3], ARGV[6], ARGV[1])}
	end
	if state ~= RETRYABLE or owner == ARGV[4] then return full(rec, KEYS[2]) end
	local last, tries = struct.unpack('>I8I4', rec, 85)
	fence, attempt = math.max(now, last + 1), tries + 1
end
local lease = now + ARGV[5]
local scope = ARGV[3]
if rec then scope = rec:sub(53, 84) end
rec = '\1\1\0' .. ARGV[2] .. ARGV[4] .. scope .. struct.pack('>I8I4I8', fence, attempt, now) .. tail(lease, 0, 0, 0)
redis.call('SET', KEYS[1], rec)
redis.call('ZADD', KEYS[3], string.format('%d', lease), ARGV[1])
redis.call('ZADD', KEYS[4], '0', ARGV[1])
return {now, rec}
