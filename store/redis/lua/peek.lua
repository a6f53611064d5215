-- KEYS record and result of each. Returns now, and of each the record, '' if its key is
-- of another type, and whether its result is there.
local all = {now}
for i = 1, #KEYS, 2 do
	local rec, damaged, was = load(KEYS[i])
	if damaged and not was then return damaged end
	if was then rec = was end
	all[#all + 1] = rec
	all[#all + 1] = rec and redis.call('EXISTS', KEYS[i + 1]) or 0
end
return all
