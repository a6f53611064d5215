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

	flagGone = 1
)

// maxDuration bounds leases and retentions: longer ones are cut to it, because
// the numbers of scripts are exact up to 2^53 microseconds.
const maxDuration = 100 * 365 * 24 * time.Hour

// shards is how many hash tags there are. A record's is taken from its ID, where
// that is the key's digest and not the scope's. Their slots are spread evenly. A
// shard's records that are running or unknown share one index, ordered by lease,
// and one list, ordered by identity, so that pages go on where they ended whatever
// becomes of leases meanwhile. Both are in the same slot.
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

// decode makes a record of what a script returned: now, the record and its
// result, where there are such.
func decode(id stet.ID, reply any) (rec stet.Record, err error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) == 0 {
		return rec, errReply(reply)
	}
	now, ok := fields[0].(int64)
	if !ok {
		return rec, errReply(fields[0])
	}
	var packed, result any // nil where there is none
	if len(fields) > 1 {
		packed = fields[1]
	}
	if len(fields) > 2 {
		result = fields[2]
	}
	bytes, found := result.(string)
	if rec, err = unpack(id, packed, now, found); err == nil && found && rec.State.Settled() && !rec.Gone {
		rec.Result = []byte(bytes)
	}
	return rec, err
}

// unpack makes a record of what the server has under its name, nil for none. A
// settled record without its result is gone.
func unpack(id stet.ID, value any, now int64, result bool) (stet.Record, error) {
	r := stet.Record{ID: id}
	if value == nil {
		return r, nil
	}
	packed, _ := value.(string)
	if len(packed) != recordSize || packed[0] != 1 || packed[1] == 0 || packed[1] > byte(stet.Unknown) {
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
	r.Gone = r.State.Settled() && (packed[2] == flagGone || !result)
	return r, nil
}
