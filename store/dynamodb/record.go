package dynamodb

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/stet-go/stet/store"
)

// The attributes of an item. An item of a key that was never claimed, but for transactions that
// were rolled back, has attrID, attrShard, attrDue, attrTTL and attrTx alone.
const (
	attrID          = "id"
	attrShard       = "shard" // of the index, from the last byte of the ID
	attrDue         = "due"   // when Sweep must read the record, in milliseconds
	attrTTL         = "ttl"   // when DynamoDB may delete the item, in seconds; none: never
	attrTx          = "tx"    // the transaction that runs, see marker
	attrScope       = "scope"
	attrFingerprint = "fingerprint"
	attrOwner       = "owner"
	attrClass       = "class"
	attrName        = "name"
	attrRef         = "ref"
	attrFence       = "fence"
	attrAttempt     = "attempt"
	attrClaimed     = "claimed"
	attrState       = "state"
	attrLease       = "lease"   // when the lease ends
	attrSettled     = "settled" // this and the next as in store.Record, in milliseconds
	attrExpire      = "expire"
	attrForget      = "forget"
	attrGone        = "gone"
	attrResult      = "result" // see store.Result.Marshal
)

// shards is how many partitions the index has.
const shards = 16

// never is the due time of an unknown record.
const never millis = math.MaxInt64

type item = map[string]types.AttributeValue

// head is what a claim writes.
type head struct {
	scope       store.ID
	fingerprint store.Fingerprint
	owner       store.Owner
	label       store.Label
	fence       int64
	attempt     int
	claimed     millis
}

// times are when a lease ends, and those of a record that has ended. A record has those of its state.
type times struct{ lease, settled, expire, forget millis }

// marker is a transaction that runs, or, if its time has passed, the last that was rolled back. No other
// call of the key runs until then.
type marker struct {
	Owner       store.Owner
	Fingerprint store.Fingerprint
	Fence       int64
	Until       millis
}

// node is an item.
type node struct {
	id     store.ID
	exists bool
	state  store.State // None: it has only a marker
	head
	times
	gone   bool
	result store.Result
	tx     *marker
}

func bytesOf(b []byte) types.AttributeValue { return &types.AttributeValueMemberB{Value: b} }
func textOf(s string) types.AttributeValue  { return &types.AttributeValueMemberS{Value: s} }
func numberOf(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func keyOf(id store.ID) item { return item{attrID: bytesOf(id[:])} }

// marshal returns the whole item.
func (n *node) marshal(grace millis) item {
	it := keyOf(n.id)
	it[attrShard] = numberOf(int64(n.id[len(n.id)-1] % shards))
	if n.state != store.None {
		it[attrScope], it[attrFingerprint], it[attrOwner] = bytesOf(n.scope[:]), bytesOf(n.fingerprint[:]), bytesOf(n.owner[:])
		it[attrClass], it[attrName], it[attrRef] = textOf(n.label.Class), textOf(n.label.Name), bytesOf([]byte(n.label.Ref))
		it[attrFence], it[attrAttempt], it[attrClaimed] = numberOf(n.fence), numberOf(int64(n.attempt)), numberOf(n.claimed)
	}
	for name, v := range n.changing(grace) {
		if v != nil {
			it[name] = v
		}
	}
	return it
}

// changing returns the attributes that a change of a record writes. The value of an attribute that it removes is nil.
func (n *node) changing(grace millis) item {
	it := item{attrState: nil, attrTx: nil, attrGone: nil, attrResult: nil, attrTTL: nil}
	if n.state != store.None {
		it[attrState] = numberOf(int64(n.state))
	}
	if n.tx != nil {
		it[attrTx] = n.tx.marshal()
	}
	if n.gone {
		it[attrGone] = &types.AttributeValueMemberBOOL{Value: true}
	}
	if b := n.result.Marshal(); b != nil {
		it[attrResult] = bytesOf(b)
	}
	for name, at := range map[string]millis{attrLease: n.lease, attrSettled: n.settled, attrExpire: n.expire, attrForget: n.forget} {
		if it[name] = nil; at != 0 {
			it[name] = numberOf(at)
		}
	}
	due := n.due(grace)
	it[attrDue] = numberOf(due)
	if n.deletable(never-1, grace) {
		it[attrTTL] = numberOf(n.deletedAt(grace)/1000 + 1)
	}
	return it
}

func (m *marker) marshal() types.AttributeValue {
	b, _ := json.Marshal(m) // arrays and numbers
	return bytesOf(b)
}

// last is the greatest fence that was given for the key.
func (n *node) last() int64 {
	if n.tx != nil {
		return max(n.fence, n.tx.Fence)
	}
	return n.fence
}

// deletedAt is when the item can be deleted, if its state allows it.
func (n *node) deletedAt(grace millis) millis {
	at := n.forget
	if n.tx != nil {
		at = max(at, n.tx.Until)
	}
	return max(at, n.last()/1000+grace)
}

// deletable reports whether the item can be deleted.
func (n *node) deletable(now, grace millis) bool {
	return (n.state == store.None || n.state == store.Retryable || n.state.Settled()) && now >= n.deletedAt(grace)
}

// due is when Sweep must read the record.
func (n *node) due(grace millis) millis {
	switch {
	case n.state == store.Running:
		return n.lease
	case n.state == store.Unknown:
		return never
	case n.state.Settled() && !n.gone:
		return n.expire
	}
	return n.deletedAt(grace)
}

// locked reports whether a transaction runs.
func (n *node) locked(now millis) bool { return n.tx != nil && now < n.tx.Until }

// forgotten reports whether the record counts as none.
func (n *node) forgotten(now millis) bool {
	return (n.state == store.Retryable || n.state.Settled()) && now >= n.forget
}

func at(t millis) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMilli(t)
}

// left is the time from now until then, or the longest time.Duration.
func left(until, now millis) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(-most, min(most, until-now))) * time.Millisecond
}

// record returns the record at the time now, without a transaction that runs.
func (n *node) record(now millis) store.Record {
	if !n.exists || n.state == store.None || n.forgotten(now) {
		return store.Record{ID: n.id}
	}
	r := store.Record{ID: n.id, Scope: n.scope, Label: n.label, State: n.state, Fingerprint: n.fingerprint,
		Owner: n.owner, Fence: n.fence, Attempt: n.attempt, Result: n.result, Gone: n.gone, ClaimedAt: at(n.claimed)}
	if n.state == store.Running {
		r.LeaseLeft = left(n.lease, now)
		return r
	}
	r.SettledAt, r.ExpiresAt, r.ForgetAt = at(n.settled), at(n.expire), at(n.forget)
	if n.state.Settled() && now >= n.expire {
		r.Result, r.Gone = store.Result{}, true
	}
	return r
}

// seen returns the record at the time now; a transaction that runs is a running record.
func (n *node) seen(now millis) store.Record {
	r := n.record(now)
	if !n.locked(now) {
		return r
	}
	return store.Record{ID: n.id, Scope: r.Scope, State: store.Running, Fingerprint: n.tx.Fingerprint, Owner: n.tx.Owner,
		Fence: n.tx.Fence, Attempt: r.Attempt + 1, LeaseLeft: left(n.tx.Until, now), ClaimedAt: at(n.tx.Fence / 1000)}
}

// reader reads the attributes of an item. The first that is not as expected is its error.
type reader struct {
	it  item
	err error
}

func (r *reader) fail(name string) {
	if r.err == nil {
		r.err = fmt.Errorf("the attribute %q is missing, or of another type or length", name)
	}
}

func (r *reader) bytes(name string, into []byte) {
	v, ok := r.it[name].(*types.AttributeValueMemberB)
	if !ok || len(v.Value) != len(into) {
		r.fail(name)
		return
	}
	copy(into, v.Value)
}

func (r *reader) text(name string) string {
	v, ok := r.it[name].(*types.AttributeValueMemberS)
	if !ok {
		r.fail(name)
		return ""
	}
	return v.Value
}

// number reads a number that is 1 at least, or 0 for none if it is optional.
func (r *reader) number(name string, optional bool) int64 {
	if _, ok := r.it[name]; !ok && optional {
		return 0
	}
	v, ok := r.it[name].(*types.AttributeValueMemberN)
	if ok {
		if n, err := strconv.ParseInt(v.Value, 10, 64); err == nil && n > 0 {
			return n
		}
	}
	r.fail(name)
	return 0
}

// blob reads bytes of any length; none if there are none.
func (r *reader) blob(name string) []byte {
	if _, ok := r.it[name]; !ok {
		return nil
	}
	v, ok := r.it[name].(*types.AttributeValueMemberB)
	if !ok {
		r.fail(name)
		return nil
	}
	return v.Value
}

// unmarshal reads an item. An error wraps store.ErrDamaged; the fence may be readable then.
func unmarshal(id store.ID, it item) (*node, error) {
	n := &node{id: id, exists: len(it) > 0}
	if !n.exists {
		return n, nil
	}
	r := &reader{it: it}
	if b := r.blob(attrTx); b != nil {
		n.tx = new(marker)
		if err := json.Unmarshal(b, n.tx); err != nil {
			r.fail(attrTx)
		}
	}
	if _, ok := it[attrFence]; ok { // also if the rest is damaged: Expire compares it
		n.fence = r.number(attrFence, false)
	}
	n.state = store.State(r.number(attrState, n.tx != nil))
	if n.state != store.None {
		n.readHead(r)
		n.readEnd(r)
	}
	if r.err != nil {
		return n, fmt.Errorf("dynamodb: %w: %v: %w", store.ErrDamaged, id, r.err)
	}
	return n, nil
}

func (n *node) readHead(r *reader) {
	n.fence = r.number(attrFence, false)
	r.bytes(attrScope, n.scope[:])
	r.bytes(attrFingerprint, n.fingerprint[:])
	r.bytes(attrOwner, n.owner[:])
	n.label = store.Label{Class: r.text(attrClass), Name: r.text(attrName), Ref: string(r.blob(attrRef))}
	n.attempt, n.claimed = int(r.number(attrAttempt, false)), r.number(attrClaimed, false)
}

func (n *node) readEnd(r *reader) {
	if n.state > store.Unknown {
		r.fail(attrState)
	}
	settled := n.state.Settled()
	n.lease = r.number(attrLease, n.state != store.Running)
	n.settled = r.number(attrSettled, n.state == store.Running)
	n.expire = r.number(attrExpire, !settled)
	n.forget = r.number(attrForget, !settled && n.state != store.Retryable)
	_, n.gone = r.it[attrGone]
	if err := n.result.Unmarshal(r.blob(attrResult)); err != nil {
		r.fail(attrResult)
	}
}
