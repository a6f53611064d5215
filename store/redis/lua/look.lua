-- KEYS record, result, outbox.
local rec, damaged = load(KEYS[1])
if damaged then return damaged end
return whole(rec, KEYS[2], KEYS[3])
