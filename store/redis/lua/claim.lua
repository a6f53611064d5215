-- KEYS record, result, index, list, fence. ARGV id, fingerprint, scope, owner, lease, channel, label.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
local last, attempt, scope, head = 0, 1, ARGV[3], '\1\1\0'
if rec then
	local state, owner = rec:byte(2), rec:sub(37, 52)
	if rec:sub(4, 36) ~= ARGV[2] then return full(rec, KEYS[2]) end
	if state == RUNNING and owner ~= ARGV[4] and struct.unpack('>I8', rec, 105) <= now then
		return {now, markUnknown(rec, KEYS[1], KEYS[3], ARGV[6], ARGV[1])}
	end
	if state ~= RETRYABLE or owner == ARGV[4] then return full(rec, KEYS[2]) end
	last, attempt = struct.unpack('>I8I4', rec, 85)
	attempt, scope, head = attempt + 1, rec:sub(53, 84), become('\1', rec)
end
local lease = now + ARGV[5]
rec = head .. ARGV[2] .. ARGV[4] .. scope .. struct.pack('>I8I4I8', grant(KEYS[5], last), attempt, now) .. tail(lease, 0, 0, 0) .. ARGV[7]
redis.call('SET', KEYS[1], rec)
if head:byte(3) >= 4 then redis.call('PERSIST', KEYS[2]) end -- what an earlier run has stored
redis.call('ZADD', KEYS[3], string.format('%d', lease), ARGV[1])
redis.call('ZADD', KEYS[4], '0', ARGV[1])
return {now, rec}
