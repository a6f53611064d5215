-- KEYS any. Returns the name that the server has given itself when it started.
return redis.call('INFO', 'server'):match('run_id:(%x+)')
