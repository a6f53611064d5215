-- The record, a string of 136 bytes and more, numbers big-endian, times in microseconds:
--   1 version   2 state   3 flags   4 fingerprint   37 owner   53 scope
--   85 fence   93 attempt   97 claimed   105 lease   113 settled   121 expires   129 forget
-- and from 137 on, unless all of it is empty, its label: class, name and reference, each
-- behind its length, which has one byte, and of the reference two.
-- Flags, a sum: 1 the result is gone, 2 a caller watches the run, 4 it has work, which
-- must be run, or once it is settled to be sent, 8 its cancellation was asked for,
-- 16 it has notes, 32 it runs and may be repeated. With any from 4 on it is of version 2, which programs refuse that
-- do not know of them. Of a settled record the lease is how many replicas are known
-- to have it, and of an accepted one when it can be taken.
local RUNNING, COMPLETED, FAILED, RETRYABLE, UNKNOWN, ACCEPTED = 1, 2, 3, 4, 5, 6

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- measured reports whether a record has the length that it says.
local function measured(rec)
	if #rec <= 136 then return #rec == 136 end
	local class = rec:byte(137)
	local name = rec:byte(138 + class)
	if not name or #rec < 140 + class + name then return false end
	return #rec == 140 + class + name + struct.unpack('>I2', rec, 139 + class + name)
end

-- label is all that a record is called.
local function label(rec) return rec:sub(137) end

-- load returns a record, or false. If this version cannot read it, it returns an error
-- reply, and the stored value: '' of a key of another type.
local function load(key)
	local rec = redis.pcall('GET', key)
	if type(rec) == 'table' then
		if not rec.err:find('WRONGTYPE') then return nil, rec end
		rec = ''
	end
	-- A fence of 2^53 or more would be none: numbers are not exact beyond.
	if rec and (not measured(rec) or rec:byte(1) < 1 or rec:byte(1) > 2 or rec:byte(2) < 1 or rec:byte(2) > 6 or rec:byte(85) > 0 or rec:byte(86) > 31) then
		return nil, redis.error_reply('STETFORMAT the record is damaged, or was written by a newer version'), rec
	end
	return rec
end

local function settled(state) return state == COMPLETED or state == FAILED end

-- queuename is the name by which a record waits: its own, but messages to send has none.
local function queuename(rec)
	if settled(rec:byte(2)) or #rec == 136 then return '' end
	local class = rec:byte(137)
	return rec:sub(139 + class, 138 + class + rec:byte(138 + class))
end

-- queued is the key of what waits under a name.
local function queued(all, name) return all .. ':' .. name end

-- grant returns the fence of a new claim, given the last of its record, or 0: greater
-- than any that was granted in this shard before, although the record of that may be
-- forgotten and the clock set back since.
local function grant(key, last)
	local fence = math.max(now, last + 1)
	local top = tonumber(redis.call('SET', key, string.format('%d', fence), 'GET') or 0)
	if fence <= top then
		fence = top + 1
		redis.call('SET', key, string.format('%d', fence))
	end
	return fence
end

-- full is the answer to a caller that asks for a record.
local function full(rec, resultkey)
	if not rec then return {now} end
	if settled(rec:byte(2)) and rec:byte(3) % 2 == 0 then
		return {now, rec, redis.call('GET', resultkey)}
	end
	return {now, rec}
end

-- came reports whether a settled record has that result. A result that has expired, by itself
-- or by hand, may have been another.
local function came(rec, resultkey, gone, result)
	if struct.unpack('>I8', rec, 121) <= now or gone ~= (rec:byte(3) % 2 == 1) then return false end
	return gone or redis.call('GET', resultkey) == result
end

-- tail is the end of a record, from its lease on.
local function tail(lease, ended, expires, forget)
	return struct.pack('>I8I8I8I8', lease, ended, expires, forget)
end

-- ms rounds up, as a key lives through the millisecond of its expiry.
local function ms(us) return string.format('%d', math.ceil(us / 1000)) end

-- ended notifies watchers that a run is over. They also poll: the write
-- must not fail if the user may not publish.
local function ended(rec, channel, id)
	if rec:byte(3) % 4 >= 2 then redis.pcall('PUBLISH', channel, id) end
end

-- become is the beginning of a record in another state, with its unchanged parts.
local function become(state, rec)
	local flags = rec:byte(3) % 32
	if flags < 4 then return '\1' .. state .. '\0' end
	return '\2' .. state .. string.char(flags - flags % 4)
end

-- repeatable reports whether a record is of a run that may be repeated. Such a run is in
-- the queue of operations to run.
local function repeatable(rec) return rec:byte(2) == RUNNING and rec:byte(3) >= 32 end

-- markUnknown makes an expired run's record unknown, or accepted if the run may be repeated, and
-- returns it.
local function markUnknown(rec, key, index, channel, id)
	local marked
	if repeatable(rec) then
		marked = become('\6', rec) .. rec:sub(4, 104) .. tail(now, now, 0, 0) .. label(rec)
		redis.call('ZREM', index, id)
	else
		marked = become('\5', rec) .. rec:sub(4, 104) .. tail(0, now, 0, 0) .. label(rec)
		redis.call('ZADD', index, 'inf', id)
	end
	redis.call('SET', key, marked)
	ended(rec, channel, id)
	return marked
end
