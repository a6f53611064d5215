-- What a record has besides is in the key of its result, until there is one: a hash
-- of w, the work, and n, the notes. What is to be sent is in a key of its own, the
-- outbox. What waits is in a queue of its shard and name, by when it is due; and the
-- schedule of the name says of each shard when the first of its queue is. Where names are
-- looked for, they are members of a set whose key queues and schedules begin with.
local GONE, WORK, CANCELLING, NOTES, REPEATABLE = 1, 4, 8, 16, 32

local function has(rec, flag) return rec:byte(3) % (2 * flag) >= flag end

-- whole is a record with its result, work and notes.
local function whole(rec, resultkey, outboxkey)
	if not rec then return {now} end
	if settled(rec:byte(2)) then
		return {now, rec, not has(rec, GONE) and redis.call('GET', resultkey), has(rec, WORK) and redis.call('GET', outboxkey)}
	end
	if rec:byte(3) < 4 then return {now, rec} end
	local more = redis.call('HMGET', resultkey, 'w', 'n')
	return {now, rec, false, more[1], more[2]}
end

-- plan sees to it that the schedule has a shard when something of it is due. It leaves
-- a trace, also if that is so already: a caller that looks at the shard meanwhile may
-- not have seen it.
local function plan(schedules, name, shard, due)
	local schedule = queued(schedules, name)
	redis.call('ZADD', schedules, '0', name)
	local was = redis.call('ZSCORE', schedule, shard)
	if was then due = math.min(due, was - 1) end
	redis.call('ZADD', schedule, string.format('%d', due), shard)
end

-- wait puts a record into the queue of its shard and name. The schedules are nil if
-- another server has them.
local function wait(queues, name, id, due, schedules, shard)
	redis.call('ZADD', queues, '0', name)
	redis.call('ZADD', queued(queues, name), string.format('%d', due), id)
	if schedules then plan(schedules, name, shard, due) end
end

-- send settles a record with an outbox: see settle.lua.
local function send(rec, state, gone, expires)
	local flags = WORK
	if gone then flags = WORK + GONE end
	redis.call('SET', KEYS[1], '\2' .. state .. string.char(flags) .. rec:sub(4, 104) .. tail(0, now, expires, 0) .. label(rec))
	redis.call('SET', KEYS[6], ARGV[9])
	wait(KEYS[7], '', ARGV[1], now, KEYS[8], ARGV[10])
end
