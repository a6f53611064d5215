-- KEYS record, result.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
return full(rec, KEYS[2])
