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

// Message is a message that an operation publishes. It is sent after the outcome is durable,
// and only if the outcome is stored.
type Message struct {
	// ID is the same each time the message is sent, so that consumers can detect duplicates.
	// Emit derives it from the operation and the number of messages emitted before.
	ID string
	// To is the destination: a topic, subject or routing key. 1 to 1,024 bytes.
	To string
	// Key orders messages, if the broker supports it. Default none.
	Key string
	// Header has the headers of the message.
	Header map[string]string
	// Body is the payload.
	Body []byte
}

func (m Message) size() int {
	n := len(m.To) + len(m.Key) + len(m.Body)
	for k, v := range m.Header {
		n += len(k) + len(v)
	}
	return n
}

// sendable returns an error for a message that brokers refuse.
func (m Message) sendable() error {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	switch {
	case m.To == "" || len(m.To) > maxDestination || strings.ContainsFunc(m.To, control):
		return invalid("Message.To has %d bytes; set it to a destination of 1 to %d bytes without control characters", len(m.To), maxDestination)
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

// Emit adds a message to the outcome of the run. The message is stored in the same write as
// the outcome, in a transaction with the same commit, and sent at least once afterwards (see
// Engine.Relay).
//
// A run that is released, marked unknown or rolled back sends nothing, and neither does a
// replay. A run that is settled as failed in lease mode does send its messages. Do not emit
// inside a Step: a later attempt does not run the step again, and would not emit the message.
//
// Message.ID is replaced by a derived one. Header and body are copied. The error is an *Error
// of kind KindInvalid: the run emits too much or has ended, brokers or Options.CheckMessage
// refuse the message, or the store has no outbox.
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
		return invalid("Emit after the run has ended or SettleTx was called")
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

// takeBack removes the messages after the first to, when the transaction that would have
// stored them was rolled back and the run tries again.
func (r *Run) takeBack(to int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.outbox[to:] {
		r.outboxSize -= m.size()
	}
	r.outbox, r.committing = r.outbox[:to:to], false
}

// packedOutbox is the stored form of an outbox.
type packedOutbox struct {
	Class     string
	Tombstone time.Duration `json:",omitzero"` // how long the key is refused after all messages were sent; 0: the class decides
	Messages  []Message
}

// packedBySQL is the first byte of an outbox that stet_settle wrote.
const packedBySQL = 3

// unpack decodes an outbox that pack or stet_settle wrote.
func (s *sealer) unpack(id store.ID, stored []byte) (p packedOutbox, err error) {
	var plain []byte
	if len(stored) > 0 && stored[0] == packedBySQL && s.acceptPlain {
		plain = stored[1:]
	} else if plain, err = s.unwrap(id, sealedOutbox, stored); err != nil {
		return p, err
	}
	return p, json.Unmarshal(plain, &p)
}

// sealed prepares the outcome and the emitted messages for the store. No message can be
// emitted afterwards.
func (r *Run) sealed(out Outcome) store.Settlement {
	r.mu.Lock()
	r.committing = true
	messages := r.outbox
	r.mu.Unlock()
	return r.pack(out, messages)
}

// sealedUnlessOpen is sealed for a run that continues. It fails while a StepOnce is
// unresolved; afterwards no StepOnce can begin.
func (r *Run) sealedUnlessOpen(out Outcome) (store.Settlement, error) {
	r.mu.Lock()
	err := r.openStepError()
	r.committing = r.committing || err == nil
	messages := r.outbox
	r.mu.Unlock()
	if err != nil {
		return store.Settlement{}, err
	}
	return r.pack(out, messages), nil
}

// pack seals the outcome together with the run's trace and its messages.
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

// Relay reads about limit operations with unsent messages, oldest first, and calls send with
// them: operations[i] has the messages of one operation, in order. If there are none, send is
// not called.
//
// For each operation, send calls done once, from any goroutine. A nil error means that the
// broker has confirmed all of its messages; they are removed from the outbox. Another error is
// reported to the observer, and the messages are due again after the time again.
//
// Relay returns the number of operations whose messages were sent and removed. Its error joins
// the error of send and *Errors of kind KindInvalid, KindDamaged or KindStore. After an error,
// sent messages may be sent again, or a shard of the store was not read.
func (e *Engine) Relay(ctx context.Context, limit int, again time.Duration, send func(operations [][]Message, done func(i int, err error)) error) (int, error) {
	outbox, err := e.outboxStore()
	if err != nil {
		return 0, err
	}
	recs, unasked := e.due(ctx, limit, again, func(ctx context.Context) ([]store.Record, error) { return outbox.DueMessages(ctx, limit, again) })
	var parcels []parcel
	var operations [][]Message
	for _, rec := range recs {
		p, err := e.sealer.unpack(rec.ID, rec.Outbox)
		if err != nil { // it stays in the outbox for an operator
			e.observe(ctx, observe.Event{Kind: observe.StoreFailed, ID: rec.ID, State: rec.State, Fence: rec.Fence, Attempt: rec.Attempt, Err: damaged(err)})
			continue
		}
		parcels, operations = append(parcels, parcel{rec.Claim(), p.Class, p.Tombstone}), append(operations, p.Messages)
	}
	if len(parcels) == 0 {
		return 0, unasked
	}
	var mu sync.Mutex
	var n int // not a named result: send may call done after it returned
	var unremoved error
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
				unremoved = err // the last of them
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
	return n, errors.Join(unasked, err, unremoved)
}

// parcel is the outbox of one operation.
type parcel struct {
	claim store.Claim
	class string
	keep  time.Duration // 0: the class decides
}

// relayed removes a parcel from the outbox, also if the context of the caller has ended.
func (e *Engine) relayed(ctx context.Context, p parcel) error {
	keep := e.policyOf(p.class).Retention
	keep.Tombstone = cmp.Or(p.keep, keep.Tombstone)
	err := e.retry(context.WithoutCancel(ctx), claimTries, func(ctx context.Context) error { return e.outbox.Relayed(ctx, p.claim, keep) })
	if err != nil && !errors.Is(err, store.ErrFenced) { // fenced: forgotten since, by an operator
		return storeFailed(Executed, err)
	}
	return nil
}
