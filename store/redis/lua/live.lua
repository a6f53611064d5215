-- KEYS lists. ARGV limit, then the list that is to begin after an identity, and
-- that. Returns the identities, in the order of the lists and in each by its bytes:
-- of each list a list.
local all, left = {}, tonumber(ARGV[1])
for i, list in ipairs(KEYS) do
	all[i] = {}
	if left > 0 then
		local from = '-'
		if list == ARGV[2] then from = '(' .. ARGV[3] end
		all[i] = redis.call('ZRANGEBYLEX', list, from, '+', 'LIMIT', 0, left)
		left = left - #all[i]
	end
end
return all
