-- KEYS schedules. ARGV of each queue: name, shard, its time in the schedule when it was read,
-- '' if it was not asked, and the time until it is due again, '' for never. If its entry was
-- not written since, that time replaces it. Otherwise a record may have been added after the
-- read, and only an earlier time is written.
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
