-- KEYS indices. ARGV limit. Returns the identities whose leases seem to have run
-- out: of each index a list.
local all, left = {}, tonumber(ARGV[1])
for i, index in ipairs(KEYS) do
	all[i] = {}
	if left > 0 then
		all[i] = redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. string.format('%d', now), 'LIMIT', 0, left)
		left = left - #all[i]
	end
end
return all
