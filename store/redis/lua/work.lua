-- Before there is a result, the key of the result is a hash of w, the job, and n, the
-- checkpoints. Unsent messages are in a key of their own, the outbox. Jobs and messages are in a
-- queue of their shard and name, ordered by the time when they are due. The schedule of a name
-- has the time of the first record of each shard's queue. The names are the members of a set;
-- the keys of queues and schedules begin with its key.
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

-- plan writes into the schedule that a shard is due then, or earlier. It always changes the
-- entry: a caller that is reading the queue may not have seen the new record.
local function plan(schedules, name, shard, due)
	local schedule = queued(schedules, name)
	redis.call('ZADD', schedules, '0', name)
	local was = redis.call('ZSCORE', schedule, shard)
	if was then due = math.min(due, was - 1) end
	redis.call('ZADD', schedule, string.format('%d', due), shard)
end

-- wait puts a record into the queue of its shard and name. schedules is nil if the schedule is
-- on another server.
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
