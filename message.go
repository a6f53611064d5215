package stet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

const (
	maxDestination = 1024 // bytes of Message.To
	maxHeaderName  = 255
)

// Message is what an operation tells others: it leaves after the outcome is
// durable, and never without it.
type Message struct {
	// ID is the same every time the message is sent; consumers tell
	// repetitions by it. Emit derives it from the operation and from how many
	// messages were emitted before.
	ID string
	// To is where it goes: a topic, a subject, a routing key.
	To string
	// Key is what messages are kept in order by, where the broker does that.
	Key string
	// Header goes along with it.
	Header map[string]string
	// Body is what it says.
	Body []byte
}

func (m Message) size() int {
	n := len(m.To) + len(m.Key) + len(m.Body)
	for k, v := range m.Header {
		n += len(k) + len(v)
	}
	return n
}

// sendable is the error for a message that no broker takes.
func (m Message) sendable() error {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	switch {
	case m.To == "" || len(m.To) > maxDestination || strings.ContainsFunc(m.To, control):
		return invalid("Message.To has %d bytes; it must say where the message goes, in 1 to %d without control characters", len(m.To), maxDestination)
	case !utf8.ValidString(m.To) || !utf8.ValidString(m.Key):
		return invalid("Message.To, Key and Header must be UTF-8")
	}
	for name, value := range m.Header {
		switch {
		case name == "" || len(name) > maxHeaderName || strings.ContainsFunc(name, control):
			return invalid("a name in Message.Header has %d bytes; it must have 1 to %d, and no control characters", len(name), maxHeaderName)
		case !utf8.ValidString(name) || !utf8.ValidString(value):
			return invalid("Message.To, Key and Header must be UTF-8")
		}
	}
	return nil
}

// Emit adds a message to the outcome of the run: it is stored by the same write,
// in a transaction with the same commit, and sent afterwards, at least once, by
// whoever relays what is in the store's outbox. It does not belong into a Step: a
// later attempt, which does not run the step again, would not emit it. A run that
// is released or marked unknown emits nothing, and neither does a replay. One that is settled
// as failed in lease mode does: what it had done before it failed stands. In a
// transaction its messages are rolled back with its writes. The message's ID
// is derived and the one given ignored; header and body are copied. The error is an
// *Error of kind KindInvalid: too much, what no broker takes, or Options.CheckMessage
// refuses, a store that keeps no messages, or a run that has ended.
func (r *Run) Emit(m Message) error {
	if _, err := r.e.outboxStore(); err != nil {
		return err
	}
	if err := m.sendable(); err != nil {
		return err
	}
	if check := r.e.o.CheckMessage; check != nil {
		if err := check(m); err != nil {
			return invalid("the message cannot be sent: %w", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.replayed || r.ended && !r.transactional || r.committing:
		return invalid("Emit after the run has ended, or its outcome was given to SettleTx")
	case len(r.outbox) >= store.MaxMessages || r.outboxSize+m.size() > store.MaxOutbox:
		return invalid("a run can emit %d messages and %d bytes", store.MaxMessages, store.MaxOutbox)
	}
	m.ID = DeriveKey("stet/message", r.rec.ID.String(), strconv.Itoa(len(r.outbox)))
	m.Header, m.Body = maps.Clone(m.Header), slices.Clone(m.Body)
	r.outboxSize += m.size()
	r.outbox = append(r.outbox, m)
	return nil
}

func (r *Run) emitted() []Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outbox
}

// takeBack forgets what was emitted since there were that many messages, when the
// transaction that was to hold them did not come about. It is for another try of
// the same run.
func (r *Run) takeBack(to int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.outbox[to:] {
		r.outboxSize -= m.size()
	}
	r.outbox, r.committing = r.outbox[:to:to], false
}

// packedOutbox is an outbox as it is stored.
type packedOutbox struct {
	Class     string
	Tombstone time.Duration `json:",omitzero"` // how long the key is refused once all have left; 0: as the class says
	Messages  []Message
}

// packedBySQL is the first byte of an outbox that stet_settle has written.
const packedBySQL = 3

// unpack undoes what pack, or stet_settle, has done to messages.
func (s *sealer) unpack(id store.ID, stored []byte) (p packedOutbox, err error) {
	var plain []byte
	if len(stored) > 0 && stored[0] == packedBySQL && s.acceptPlain {
		plain = stored[1:]
	} else if plain, err = s.unwrap(id, sealedOutbox, stored); err != nil {
		return p, err
	}
	return p, json.Unmarshal(plain, &p)
}

// sealed prepares the outcome and what the run has emitted for the store. It is
// the end of emitting.
func (r *Run) sealed(out Outcome) store.Settlement {
	r.mu.Lock()
	r.committing = true
	messages := r.outbox
	r.mu.Unlock()
	return r.pack(out, messages)
}

// sealedUnlessInDoubt is sealed for a run that continues: no step that must not be
// repeated may be begun any more, and none be in doubt.
func (r *Run) sealedUnlessInDoubt(out Outcome) (store.Settlement, error) {
	r.mu.Lock()
	doubt := r.openStepError()
	r.committing = r.committing || doubt == nil
	messages := r.outbox
	r.mu.Unlock()
	if doubt != nil {
		return store.Settlement{}, doubt
	}
	return r.pack(out, messages), nil
}

// pack seals the outcome together with the run's trace and what was emitted.
func (r *Run) pack(outcome Outcome, messages []Message) store.Settlement {
	if of := observe.TraceOf(r.ctx).Run; of != nil && outcome.Trace == "" {
		if trace := of(); len(trace) <= observe.MaxTrace {
			outcome.Trace = trace
		}
	}
	out, lost := r.e.sealer.seal(r.rec.ID, outcome, r.p.MaxResult)
	r.mu.Lock()
	r.discarded = lost
	r.mu.Unlock()
	if len(messages) > 0 {
		packed, _ := json.Marshal(packedOutbox{Class: r.op.Class, Messages: messages}) // strings and bytes never fail
		out.Outbox = r.e.sealer.wrap(r.rec.ID, sealedOutbox, packed)
	}
	return out
}

// Relay hands to send what about limit operations, at most, have emitted, the longest
// waiting first: operations[i] are the messages of one, in their order. send says by told
// what became of those of each operation, once, and may do so from several goroutines:
// nil, that all of them have been sent and that what is to keep them has confirmed it, so
// they leave the outbox; or why not, which the observer is told. What is not confirmed
// stays, and is returned again, to any caller, after the time again. Without any
// messages send is not called.
//
// Relay returns of how many operations it is stored that all messages were sent. Its error
// joins that of send and *Errors of kind KindInvalid, KindDamaged or KindStore: messages
// that were sent may be sent again, or a part of the store did not say what waits there.
func (e *Engine) Relay(ctx context.Context, limit int, again time.Duration, send func(operations [][]Message, told func(i int, err error)) error) (int, error) {
	outbox, err := e.outboxStore()
	if err != nil {
		return 0, err
	}
	recs, unasked := e.due(ctx, limit, again, func(ctx context.Context) ([]store.Record, error) { return outbox.DueMessages(ctx, limit, again) })
	var parcels []parcel
	var operations [][]Message
	for _, rec := range recs {
		p, err := e.sealer.unpack(rec.ID, rec.Outbox)
		if err != nil { // an operator's case: it stays in the outbox
			e.observe(ctx, observe.Event{Kind: observe.StoreFailed, ID: rec.ID, State: rec.State, Fence: rec.Fence, Err: damaged(err)})
			continue
		}
		parcels, operations = append(parcels, parcel{rec.Claim(), p.Class, p.Tombstone}), append(operations, p.Messages)
	}
	if len(parcels) == 0 {
		return 0, unasked
	}
	var mu sync.Mutex
	var n int // not a result: send may leave behind what continues to tell
	var unsaid error
	err = send(operations, func(i int, err error) {
		p := parcels[i]
		ev := observe.Event{Kind: observe.Unsent, ID: p.claim.ID, Class: p.class, Fence: p.claim.Fence, Err: err}
		if err == nil {
			ev.Kind = observe.Relayed
			err := e.relayed(ctx, p)
			mu.Lock()
			if err == nil {
				n++
			} else {
				unsaid = err // the last stands for the others
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
		e.observe(ctx, ev)
	})
	mu.Lock()
	defer mu.Unlock()
	return n, errors.Join(unasked, err, unsaid)
}

// parcel is what one operation has emitted.
type parcel struct {
	claim store.Claim
	class string
	keep  time.Duration // 0: as the class says
}

// relayed takes a parcel out of the outbox, also if the caller has left in the meantime.
func (e *Engine) relayed(ctx context.Context, p parcel) error {
	keep := e.policyOf(p.class).Retention
	keep.Tombstone = cmp.Or(p.keep, keep.Tombstone)
	err := e.retry(context.WithoutCancel(ctx), claimTries, func(ctx context.Context) error { return e.outbox.Relayed(ctx, p.claim, keep) })
	if err != nil && !errors.Is(err, store.ErrFenced) { // fenced: forgotten since, by an operator
		return storeFailed(Executed, err)
	}
	return nil
}
