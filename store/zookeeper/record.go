package zookeeper

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/store"
)

// maxData is the most that a znode of the store has: a result, a label and the rest of the head.
const maxData = MaxResult + 40_000

// format is the first byte of a record. The CRC-32C of the rest, the length of the head as a uvarint,
// the head as JSON and the result (store.Result.Marshal) follow.
const format = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// head is the stored form of a record, without its result. Its times are relative to At, or to the mtime
// of the znode if At is 0, in milliseconds. ClaimedAt is the znode's ctime, the fence its czxid.
type head struct {
	Scope, Fingerprint, Owner, Ref []byte
	Class, Name                    string
	State                          store.State
	Attempt                        int
	Gone                           bool
	At                             millis
	End                            times
	Slot                           slot
}

// times are when a lease ends, a result expires and a record is forgotten. A record has those of its state.
type times struct{ Lease, Expire, Forget millis }

// node is a znode of a record.
type node struct {
	head
	id     store.ID
	result store.Result
	stat   zk.Stat
	exists bool
}

// marshal returns the bytes of the znode.
func (n *node) marshal() ([]byte, error) {
	head, err := json.Marshal(n.head)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 5, 16+len(head)+n.result.Size())
	b = append(binary.AppendUvarint(b, uint64(len(head))), head...)
	b = append(b, n.result.Marshal()...)
	b[0] = format
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[5:], castagnoli))
	return b, nil
}

// unmarshal reads the bytes of the znode. An error wraps store.ErrDamaged.
func (n *node) unmarshal(b []byte) error {
	if len(b) < 6 || b[0] != format || crc32.Checksum(b[5:], castagnoli) != binary.BigEndian.Uint32(b[1:]) {
		return n.unreadable("its checksum or its version is wrong")
	}
	size, skip := binary.Uvarint(b[5:])
	rest := b[5+max(skip, 0):]
	if skip <= 0 || size > uint64(len(rest)) {
		return n.unreadable("its head is too short")
	}
	if err := json.Unmarshal(rest[:size], &n.head); err != nil {
		return n.unreadable(err.Error())
	}
	if n.State < store.Running || n.State > store.Unknown || len(n.Scope) != len(store.ID{}) || len(n.Owner) != len(store.Owner{}) || len(n.Fingerprint) != len(store.Fingerprint{}) {
		return n.unreadable("its fields have unexpected values")
	}
	return n.result.Unmarshal(rest[size:])
}

func (n *node) unreadable(what string) error {
	return fmt.Errorf("zookeeper: %w: %v: %s", store.ErrDamaged, n.id, what)
}

// base is the time to which the others are relative.
func (n *node) base() millis {
	if n.At != 0 {
		return n.At
	}
	return n.stat.Mtime
}

// ends reports whether a time of the record has come.
func (n *node) ends(after, now millis) bool { return now >= n.base()+after }

// forgotten reports whether the record counts as none.
func (n *node) forgotten(now millis) bool {
	return n.exists && (n.State == store.Retryable || n.State.Settled()) && n.ends(n.End.Forget, now)
}

// record returns the record at the time now.
func (n *node) record(now millis) store.Record {
	if !n.exists || n.forgotten(now) {
		return store.Record{ID: n.id}
	}
	r := store.Record{ID: n.id, Label: store.Label{Class: n.Class, Name: n.Name, Ref: string(n.Ref)}, State: n.State, Fence: n.stat.Czxid, Attempt: n.Attempt, Result: n.result, Gone: n.Gone,
		ClaimedAt: time.UnixMilli(n.stat.Ctime)}
	copy(r.Scope[:], n.Scope)
	copy(r.Fingerprint[:], n.Fingerprint)
	copy(r.Owner[:], n.Owner)
	at := func(after millis) time.Time { return time.UnixMilli(n.base() + after) }
	switch n.State {
	case store.Running:
		r.LeaseLeft = length(n.base() + n.End.Lease - now)
	case store.Unknown:
		r.SettledAt = at(0)
	case store.Retryable:
		r.SettledAt, r.ForgetAt = at(0), at(n.End.Forget)
	default:
		r.SettledAt, r.ExpiresAt, r.ForgetAt = at(0), at(n.End.Expire), at(n.End.Forget)
		if n.ends(n.End.Expire, now) {
			r.Result, r.Gone = store.Result{}, true
		}
	}
	return r
}

// span is d in the store's unit, rounded up: nothing ends before its time.
func span(d time.Duration) millis {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return max(n, 0)
}

// length is a time in the store's unit as a time.Duration, or the nearest to it.
func length(t millis) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(-most, min(most, t))) * time.Millisecond
}
