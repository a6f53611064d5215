-- KEYS agenda. ARGV limit. Returns the shards that have something due, and behind each
-- since when, as it is noted.
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now), 'WITHSCORES', 'LIMIT', 0, ARGV[1])
