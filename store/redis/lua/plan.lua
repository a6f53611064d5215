-- KEYS agenda. ARGV of each: shard, since when it was due as noted when it was looked
-- at, '' if it was not in the agenda, and how long it is until it is due again, '' for
-- never. If nobody has written to the agenda meanwhile, that is right; else it may
-- lack what was put into the queue after the look, and only an earlier time is noted.
for i = 1, #ARGV, 3 do
	local shard, seen, again = ARGV[i], ARGV[i + 1], ARGV[i + 2]
	if seen ~= '' and redis.call('ZSCORE', KEYS[1], shard) == seen then
		if again == '' then
			redis.call('ZREM', KEYS[1], shard)
		else
			redis.call('ZADD', KEYS[1], string.format('%d', now + again), shard)
		end
	elseif again ~= '' then
		hint(KEYS[1], shard, now + again)
	end
end
return 1
