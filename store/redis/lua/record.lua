-- The record, a string of 136 bytes, numbers big-endian, times in microseconds:
--   1 version   2 state   3 flags   4 fingerprint   37 owner   53 scope
--   85 fence   93 attempt   97 claimed   105 lease   113 settled   121 expires   129 forget
-- Flags, a sum: 1 the result is gone, 2 somebody watches the run, 4 it has work, which
-- is to be run, or once it is settled to be sent, 8 its cancellation was asked for,
-- 16 it has notes. With any from 4 on it is of version 2, which programs refuse that
-- do not know of them. Of a settled record the lease is how many replicas are known
-- to have it.
local RUNNING, COMPLETED, FAILED, RETRYABLE, UNKNOWN, ACCEPTED = 1, 2, 3, 4, 5, 6

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- load returns a record, or false; an error reply if this version cannot read it.
local function load(key)
	local rec = redis.call('GET', key)
	if rec and (#rec ~= 136 or rec:byte(1) ~= 1 and rec:byte(1) ~= 2) then
		return nil, redis.error_reply('STETFORMAT the record is damaged, or was written by a newer version')
	end
	return rec
end

local function settled(state) return state == COMPLETED or state == FAILED end

-- full is the answer of whoever asks for a record.
local function full(rec, resultkey)
	if not rec then return {now} end
	if settled(rec:byte(2)) and rec:byte(3) % 2 == 0 then
		return {now, rec, redis.call('GET', resultkey)}
	end
	return {now, rec}
end

-- tail is the end of a record, from its lease on.
local function tail(lease, ended, expires, forget)
	return struct.pack('>I8I8I8I8', lease, ended, expires, forget)
end

-- ms rounds up, as a key lives through the millisecond of its expiry.
local function ms(us) return string.format('%d', math.ceil(us / 1000)) end

-- ended tells those who watch that a run is over.
local function ended(rec, channel, id)
	if rec:byte(3) % 4 >= 2 then redis.call('PUBLISH', channel, id) end
end

-- become is the beginning of a record in another state, with what it keeps besides.
local function become(state, rec)
	local flags = rec:byte(3)
	if flags < 4 then return '\1' .. state .. '\0' end
	return '\2' .. state .. string.char(flags - flags % 4)
end

-- park makes a dead run's record unknown, and returns it.
local function park(rec, key, index, channel, id)
	local parked = become('\5', rec) .. rec:sub(4, 104) .. tail(0, now, 0, 0)
	redis.call('SET', key, parked)
	redis.call('ZADD', index, 'inf', id)
	ended(rec, channel, id)
	return parked
end
