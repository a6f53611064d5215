-- KEYS schedules. ARGV of each: name, shard, since when it was due as noted when it was
-- looked at, '' if it was not in the schedule, and how long it is until it is due again,
-- '' for never. If nothing has written to the schedule meanwhile, that is right; else it
-- may lack what was put into the queue after the look, and only an earlier time is noted.
for i = 1, #ARGV, 4 do
	local name, shard, seen, again = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
	local schedule = queued(KEYS[1], name)
	if seen ~= '' and redis.call('ZSCORE', schedule, shard) == seen then
		if again == '' then
			redis.call('ZREM', schedule, shard)
		else
			redis.call('ZADD', schedule, string.format('%d', now + again), shard)
		end
	elseif again ~= '' then
		plan(KEYS[1], name, shard, now + again)
	end
end
return 1
