-- KEYS record, result, the queues of operations to run, perhaps schedules. ARGV fence, notes,
-- the state that it is in, whether its run may be repeated, id, shard. Returns 0 if fenced,
-- the name of a record that becomes due when its lease has expired and did not
-- before, else 1.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
if not rec or rec:sub(85, 92) ~= ARGV[1] or rec:sub(2, 2) ~= ARGV[3] then return 0 end
if has(rec, NOTES) then
	local was = redis.call('HGET', KEYS[2], 'n') or ''
	local older, same = false, true
	for i = 1, 8 do -- not with <, which goes by the server's language
		local a, b = was:byte(i) or -1, ARGV[2]:byte(i) or -1
		if a ~= b then
			older, same = a < b, false
			break
		end
	end
	if same then return 1 end -- the reply to the first time was lost
	if not older then return 0 end
elseif not has(rec, WORK) then
	redis.call('UNLINK', KEYS[2])
end
local flags, was, is = rec:byte(3) % REPEATABLE, has(rec, REPEATABLE), ARGV[4] == '1' and has(rec, WORK)
if not has(rec, NOTES) then flags = flags + NOTES end
if is then flags = flags + REPEATABLE end
if flags ~= rec:byte(3) then redis.call('SETRANGE', KEYS[1], 0, '\2' .. rec:sub(2, 2) .. string.char(flags)) end
redis.call('HSET', KEYS[2], 'n', ARGV[2])
if was and not is then redis.call('ZREM', queued(KEYS[3], queuename(rec)), ARGV[5]) end
if was or not is then return 1 end
wait(KEYS[3], queuename(rec), ARGV[5], struct.unpack('>I8', rec, 105), KEYS[4], ARGV[6])
return queuename(rec)
