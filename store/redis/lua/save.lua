-- KEYS record, result. ARGV fence, notes, the state that it is in. Returns 1, or 0 if fenced.
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
else
	local flags = rec:byte(3) + NOTES
	redis.call('SETRANGE', KEYS[1], 0, '\2' .. rec:sub(2, 2) .. string.char(flags))
	if not has(rec, WORK) then redis.call('UNLINK', KEYS[2]) end
end
redis.call('HSET', KEYS[2], 'n', ARGV[2])
return 1
