-- KEYS queue, record, result and outbox of each. ARGV whether they are to be run,
-- until when they are not due again, the number of bytes after which to end, then the
-- id of each. Returns of each the record with its work, or nothing if it is not due here.
local all, size, most = {}, 0, tonumber(ARGV[3])
for i = 1, #KEYS, 4 do
	local n = (i + 3) / 4
	local id = ARGV[n + 3]
	all[n] = {}
	local due = redis.call('ZSCORE', KEYS[i], id)
	if due and tonumber(due) <= now and size < most then
		local rec, damaged = load(KEYS[i + 1])
		if damaged or rec and has(rec, WORK) and (ARGV[1] == '1' and rec:byte(2) == ACCEPTED or ARGV[1] == '0' and settled(rec:byte(2))) then
			redis.call('ZADD', KEYS[i], string.format('%d', now + ARGV[2]), id)
			if rec then
				local it = whole(rec, KEYS[i + 2], KEYS[i + 3])
				it[5] = nil -- its notes
				size = size + #(it[3] or '') + #(it[4] or '')
				all[n] = it
			end
		else
			redis.call('ZREM', KEYS[i], id) -- it has waited for something else since
		end
	end
end
return all
