-- KEYS a key that is not there. ARGV channel. Tries all that scripts do, and changes
-- nothing. Returns why it may not, '' if it may; and the same of publishing.
local function denied(command)
	local reply = redis.pcall(unpack(command))
	local err = type(reply) == 'table' and reply.err
	return err and (err:find('NOPERM') or err:find('user executing the script')) and command[1] .. ': ' .. err
end
local key, why = KEYS[1], nil
for _, command in ipairs({
	{'GET', key}, {'EXISTS', key}, {'UNLINK', key}, {'PERSIST', key}, {'PEXPIREAT', key, '1'},
	{'SET', key, '', 'XX'}, {'SETRANGE', key, '0', ''}, {'HGET', key, 'a'}, {'HMGET', key, 'a'},
	{'ZADD', key, 'XX', '0', 'a'}, {'ZREM', key, 'a'}, {'ZSCORE', key, 'a'}, {'ZRANGE', key, '0', '0'},
	{'ZRANGEBYSCORE', key, '0', '0'}, {'ZRANGEBYLEX', key, '-', '+'}, {'ZRANDMEMBER', key, '1'}, {'HSET', key, 'a', ''}, {'UNLINK', key},
}) do
	why = why or denied(command)
end
return {why or '', denied({'PUBLISH', ARGV[1], 'probe'}) or ''}
