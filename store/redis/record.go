package redis

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"time"

	"github.com/stet-go/stet"
)

// The layout of a record is described in lua/record.lua.
const (
	recordSize = 136

	flagGone       = 1
	flagCancelling = 8

	newestVersion = 2
)

// maxDuration bounds leases and retentions: longer ones are cut to it, because
// the numbers of scripts are exact up to 2^53 microseconds.
const maxDuration = 100 * 365 * 24 * time.Hour

// shards is how many hash tags there are. A record's is taken from its ID, where
// that is the key's digest and not the scope's. Their slots are spread evenly. A
// shard's records that are running or unknown share one index, ordered by lease,
// and with those that are accepted one list, ordered by identity, so that pages go
// on where they ended whatever becomes of leases meanwhile. All are in the same slot.
const shards = 1024

func shardOf(id stet.ID) int { return int(binary.BigEndian.Uint16(id[8:])) % shards }

const hexDigits = "0123456789abcdef"

// keyOf is the name of a key of a shard.
func (s *Store) keyOf(shard int, kind string) string {
	tag := [3]byte{hexDigits[shard>>8&15], hexDigits[shard>>4&15], hexDigits[shard&15]}
	return s.o.Prefix + ":{" + string(tag[:]) + "}:" + kind
}

// keys are the names of what belongs to a record.
type keys struct{ record, result, index, list string }

func (s *Store) keys(id stet.ID) keys {
	shard := shardOf(id)
	var name [2 * len(id)]byte
	hex.Encode(name[:], id[:])
	return keys{s.keyOf(shard, "op:"+string(name[:])), s.keyOf(shard, "result:"+string(name[:])), s.index(shard), s.list(shard)}
}

func (s *Store) index(shard int) string { return s.keyOf(shard, "live") }

func (s *Store) list(shard int) string { return s.keyOf(shard, "list") }

// outbox is the name of what a record has to send.
func (s *Store) outbox(id stet.ID) string { return s.keyOf(shardOf(id), "outbox:"+id.String()) }

// queueNames are what the queues of a shard are called, and their agendas.
var queueNames = [...]string{stet.DueRun: "run", stet.DueRelay: "relay"}

// queue is the name of the queue of what a shard's records wait for.
func (s *Store) queue(shard int, what stet.Due) string { return s.keyOf(shard, queueNames[what]) }

// micros is d in microseconds, rounded up, for a script.
func micros(d time.Duration) string {
	d = min(max(d, time.Microsecond), maxDuration)
	return strconv.FormatInt(int64((d+time.Microsecond-1)/time.Microsecond), 10)
}

// fence is a fence as it is in a record.
func fence(n int64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	return string(b[:])
}

// decode makes a record of what a script returned: now, the record and its result,
// where there are such.
func decode(id stet.ID, reply any) (rec stet.Record, err error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) == 0 {
		return rec, errReply(reply)
	}
	now, ok := fields[0].(int64)
	if !ok {
		return rec, errReply(fields[0])
	}
	var parts [2]any // nil where there is none
	copy(parts[:], fields[1:])
	result, found := parts[1].(string)
	if rec, err = unpack(id, parts[0], now, found); err != nil {
		return rec, err
	}
	if found && rec.State.Settled() && !rec.Gone {
		rec.Result = []byte(result)
	}
	return rec, nil
}

// decodeWhole makes a record of what a script returned: like decode, and the work and
// the notes.
func decodeWhole(id stet.ID, reply any) (rec stet.Record, err error) {
	rec, err = decode(id, reply)
	if err != nil {
		return rec, err
	}
	fields := reply.([]any)
	var parts [2]any
	copy(parts[:], fields[min(3, len(fields)):])
	if work, ok := parts[0].(string); ok {
		rec.Work = []byte(work)
	}
	if notes, ok := parts[1].(string); ok {
		rec.Notes = []byte(notes)
	}
	if packed, ok := fields[min(1, len(fields)-1)].(string); ok {
		rec.Cancelling = packed[2]&flagCancelling != 0
	}
	return rec, nil
}

// unpack makes a record of what the server has under its name, nil for none. A
// settled record without its result is gone.
func unpack(id stet.ID, value any, now int64, result bool) (stet.Record, error) {
	r := stet.Record{ID: id}
	if value == nil {
		return r, nil
	}
	packed, _ := value.(string)
	if len(packed) != recordSize || packed[0] == 0 || packed[0] > newestVersion || packed[1] == 0 || packed[1] > byte(stet.Accepted) {
		return r, errFormat
	}
	number := func(from int) int64 { return int64(binary.BigEndian.Uint64([]byte(packed[from : from+8]))) }
	instant := func(from int) (t time.Time) {
		if n := number(from); n != 0 {
			t = time.UnixMicro(n)
		}
		return t
	}
	r.State = stet.State(packed[1])
	copy(r.Fingerprint[:], packed[3:])
	copy(r.Owner[:], packed[36:])
	copy(r.Scope[:], packed[52:])
	r.Fence = number(84)
	r.Attempt = int(min(binary.BigEndian.Uint32([]byte(packed[92:96])), math.MaxInt32))
	r.ClaimedAt = instant(96)
	if r.State == stet.Running {
		r.LeaseLeft = time.Duration(number(104)-now) * time.Microsecond
	}
	r.SettledAt, r.ExpiresAt, r.ForgetAt = instant(112), instant(120), instant(128)
	r.Gone = r.State.Settled() && (packed[2]&flagGone != 0 || !result)
	return r, nil
}
