-- KEYS record and result of each. Returns now, and of each the record and
-- whether its result is there.
local all = {now}
for i = 1, #KEYS, 2 do
	local rec = redis.call('GET', KEYS[i])
	all[#all + 1] = rec
	all[#all + 1] = rec and redis.call('EXISTS', KEYS[i + 1]) or 0
end
return all
