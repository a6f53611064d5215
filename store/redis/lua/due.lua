-- KEYS of each record: queue, record, result, outbox. ARGV '1' for jobs, the time after which
-- they are due again, the number of bytes after which it returns no more, then of each record the
-- id and the name of its queue. Returns for each the record with its work; now and its bytes if
-- it cannot be read; nothing if it is not due here.
local all, size, most = {}, 0, tonumber(ARGV[3])
for i = 1, #KEYS, 4 do
	local n = (i + 3) / 4
	local id, name = ARGV[2 * n + 2], ARGV[2 * n + 3]
	all[n] = {}
	local due = redis.call('ZSCORE', KEYS[i], id)
	if due and tonumber(due) <= now and size < most then
		local rec, damaged, was = load(KEYS[i + 1])
		local ends = rec and ARGV[1] == '1' and rec:byte(2) == RUNNING and struct.unpack('>I8', rec, 105)
		if ends and ends > now then
			redis.call('ZADD', KEYS[i], string.format('%d', ends), id) -- it has been renewed
		elseif damaged or rec and has(rec, WORK) and queuename(rec) == name and
			(ARGV[1] == '1' and (rec:byte(2) == ACCEPTED or repeatable(rec)) or ARGV[1] == '0' and settled(rec:byte(2))) then
			redis.call('ZADD', KEYS[i], string.format('%d', now + ARGV[2]), id)
			local read, it = pcall(whole, rec, KEYS[i + 2], KEYS[i + 3])
			if damaged or not read then
				all[n] = {now, was or ''}
			else
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
