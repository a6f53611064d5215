-- KEYS indices. Returns the members of each.
local all = {}
for i, index in ipairs(KEYS) do all[i] = redis.call('ZRANGE', index, 0, -1) end
return all
