package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/stet-go/stet/store"
)

// The layout of a record is described in lua/record.lua.
const (
	recordSize = 136 // without its label

	flagGone       = 1
	flagCancelling = 8

	newestVersion = 2
)

// maxDuration bounds leases and retentions: longer ones are cut to it, because
// the numbers of scripts are exact up to 2^53 microseconds.
const maxDuration = 100 * 365 * 24 * time.Hour

// shards is how many hash tags there are. A record's is taken from the part of its ID that is
// the key's digest. Their slots are spread evenly. A shard has an index of its running and
// unknown records, ordered by lease, and a list of these and the accepted ones, ordered by
// identity, so that pages continue where they ended although leases change.
const shards = 1024

func shardOf(id store.ID) int { return int(binary.BigEndian.Uint16(id[8:])) % shards }

const hexDigits = "0123456789abcdef"

// keyOf is the name of a key of a shard.
func (s *Store) keyOf(shard int, kind string) string {
	tag := [3]byte{hexDigits[shard>>8&15], hexDigits[shard>>4&15], hexDigits[shard&15]}
	return s.o.Prefix + ":{" + string(tag[:]) + "}:" + kind
}

// keys are the names of what belongs to a record, or to all of its shard.
type keys struct{ record, result, index, list, fence string }

func (s *Store) keys(id store.ID) keys {
	shard, name := shardOf(id), id.String()
	return keys{s.keyOf(shard, "op:"+name), s.keyOf(shard, "result:"+name), s.index(shard), s.list(shard), s.keyOf(shard, "fence")}
}

func (s *Store) index(shard int) string { return s.keyOf(shard, "live") }

func (s *Store) list(shard int) string { return s.keyOf(shard, "list") }

// outbox is the key of a record's unsent messages.
func (s *Store) outbox(id store.ID) string { return s.keyOf(shardOf(id), "outbox:"+id.String()) }

// waitsFor is what a record waits for.
type waitsFor uint8

const (
	toRun waitsFor = iota
	toSend
)

// queueNames are the names of the kinds of queues, and of their schedules.
var queueNames = [...]string{toRun: "run", toSend: "relay"}

// queues begins the keys of a shard's queues of one kind: see queue.
func (s *Store) queues(shard int, what waitsFor) string { return s.keyOf(shard, queueNames[what]) }

// queue is the key of a shard's queue for a name, "" for unsent messages.
func (s *Store) queue(shard int, what waitsFor, name string) string {
	return s.queues(shard, what) + ":" + name
}

// packLabel is a label unchanged in a record.
func packLabel(l store.Label) string {
	if l == (store.Label{}) {
		return ""
	}
	b := make([]byte, 0, 4+len(l.Class)+len(l.Name)+len(l.Ref))
	b = append(append(b, byte(len(l.Class))), l.Class...)
	b = append(append(b, byte(len(l.Name))), l.Name...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(l.Ref))) //nolint:gosec // see fits
	return string(append(b, l.Ref...))
}

// fits refuses a label that a record has no room for.
func fits(l store.Label) error {
	if len(l.Class) > math.MaxUint8 || len(l.Name) > math.MaxUint8 || len(l.Ref) > store.MaxRef {
		return fmt.Errorf("redis: %w: the label has %d, %d and %d bytes; at most %d each, and %d the reference", store.ErrInvalid, len(l.Class), len(l.Name), len(l.Ref), store.MaxLabel, store.MaxRef)
	}
	return nil
}

// unpackLabel undoes packLabel.
func unpackLabel(packed string) (l store.Label, ok bool) {
	if packed == "" {
		return l, true
	}
	for _, part := range []*string{&l.Class, &l.Name} {
		if packed == "" || len(packed) <= int(packed[0]) {
			return l, false
		}
		n := 1 + int(packed[0])
		*part, packed = packed[1:n], packed[n:]
	}
	if len(packed) < 2 || len(packed)-2 != int(packed[0])<<8+int(packed[1]) {
		return l, false
	}
	l.Ref = packed[2:]
	return l, true
}

// micros is d in microseconds, rounded up, for a script.
func micros(d time.Duration) string {
	d = min(max(d, time.Microsecond), maxDuration)
	return strconv.FormatInt(int64((d+time.Microsecond-1)/time.Microsecond), 10)
}

// fence is a fence unchanged in a record.
func fence(n int64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	return string(b[:])
}

// decode makes a record of what a script returned: now, the record and its result,
// where there are such.
func decode(id store.ID, reply any) (rec store.Record, err error) {
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
		if b := []byte(result); rec.Result.Unmarshal(b) != nil {
			rec.Result.Head = b // no engine knows it, and the rest of the record can be read
		}
	}
	return rec, nil
}

// decodeWhole makes a record of what a script returned: like decode, and work or outbox, and
// the notes.
func decodeWhole(id store.ID, reply any) (rec store.Record, err error) {
	rec, err = decode(id, reply)
	if err != nil {
		return rec, err
	}
	fields := reply.([]any)
	var parts [2]any
	copy(parts[:], fields[min(3, len(fields)):])
	if work, ok := parts[0].(string); ok {
		if rec.Work = []byte(work); rec.State.Settled() {
			rec.Work, rec.Outbox = nil, rec.Work
		}
	}
	if notes, ok := parts[1].(string); ok {
		rec.Notes = store.UnmarshalNotes([]byte(notes))
	}
	rec.Cancelling = cancelling(reply)
	return rec, nil
}

// cancelling reports whether the cancellation of a record that decode could read was
// asked for.
func cancelling(reply any) bool {
	fields, _ := reply.([]any)
	if len(fields) < 2 {
		return false
	}
	packed, ok := fields[1].(string)
	return ok && packed[2]&flagCancelling != 0
}

// unpack makes a record of what the server has under its name, nil for none. A
// settled record without its result is gone.
func unpack(id store.ID, value any, now int64, result bool) (store.Record, error) {
	r := store.Record{ID: id}
	if value == nil {
		return r, nil
	}
	packed, _ := value.(string)
	if len(packed) < recordSize || packed[0] == 0 || packed[0] > newestVersion || packed[1] == 0 || packed[1] > byte(store.Accepted) || packed[84] != 0 || packed[85] > 31 {
		return r, errFormat
	}
	number := func(from int) int64 { return int64(binary.BigEndian.Uint64([]byte(packed[from : from+8]))) }
	instant := func(from int) (t time.Time) {
		if n := number(from); n != 0 {
			t = time.UnixMicro(n)
		}
		return t
	}
	label, ok := unpackLabel(packed[recordSize:])
	if !ok {
		return r, errFormat
	}
	r.State, r.Label = store.State(packed[1]), label
	copy(r.Fingerprint[:], packed[3:])
	copy(r.Owner[:], packed[36:])
	copy(r.Scope[:], packed[52:])
	r.Fence = number(84)
	r.Attempt = int(min(binary.BigEndian.Uint32([]byte(packed[92:96])), math.MaxInt32))
	r.ClaimedAt = instant(96)
	if r.State == store.Running {
		r.LeaseLeft = time.Duration(number(104)-now) * time.Microsecond
	}
	r.SettledAt, r.ExpiresAt, r.ForgetAt = instant(112), instant(120), instant(128)
	r.Gone = r.State.Settled() && (packed[2]&flagGone != 0 || !result)
	return r, nil
}

// damagedRecord describes a record that cannot be read. A newer version may have written other
// values in those places; they only identify the record.
func damagedRecord(id store.ID, value any) store.Record {
	packed, _ := value.(string)
	r := store.Record{ID: id}
	switch {
	case len(packed) < recordSize:
		r.Damage = fmt.Sprintf("there are %d bytes where a record has %d at least", len(packed), recordSize)
	case packed[0] == 0 || packed[0] > newestVersion:
		r.Damage = fmt.Sprintf("it is of version %d; this program reads up to %d", packed[0], newestVersion)
	case packed[1] == 0 || packed[1] > byte(store.Accepted):
		r.Damage = fmt.Sprintf("there is no state %d", packed[1])
	default:
		r.Damage = "its label, its fence or its expected reply cannot be read"
	}
	if len(packed) >= 92 {
		copy(r.Owner[:], packed[36:])
		copy(r.Scope[:], packed[52:])
		r.Fence = int64(binary.BigEndian.Uint64([]byte(packed[84:92]))) //nolint:gosec // the same 64 bits
	}
	return r
}
