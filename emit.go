package stet

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	// MaxMessages is how many messages a run can emit.
	MaxMessages = 1000
	// MaxOutbox bounds the messages of a run together, in bytes.
	MaxOutbox = 1 << 20
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

// text reports whether all of the message but its body is text.
func (m Message) text() bool {
	for k, v := range m.Header {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return false
		}
	}
	return utf8.ValidString(m.To) && utf8.ValidString(m.Key)
}

// Emit adds a message to the outcome of the run: it is stored by the same write,
// in a transaction with the same commit, and sent afterwards, at least once, by
// whoever relays what is in the store's outbox. It does not belong into a Step: a
// later attempt, which does not run the step again, would not emit it. A run that
// is released or parked emits nothing, and neither does a replay. The message's ID
// is derived and the one given ignored; header and body are copied. The error is an
// *Error of kind ErrInvalid: too much, a store that keeps no messages, or a run
// that has ended.
func (r *Run) Emit(m Message) error {
	if _, err := r.e.workStore(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.replayed || r.ended && !r.transactional || r.committing:
		return invalid("Emit after the run has ended, or its outcome was given to SettleTx")
	case m.To == "":
		return invalid("Message.To is empty; it must say where the message goes")
	case !m.text():
		return invalid("Message.To, Key and Header must be UTF-8")
	case len(r.outbox) >= MaxMessages || r.outboxSize+m.size() > MaxOutbox:
		return invalid("a run can emit %d messages and %d bytes", MaxMessages, MaxOutbox)
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
	Class    string
	Messages []Message
}

// sealed prepares the outcome and what the run has emitted for the store. It is
// the end of emitting.
func (r *Run) sealed(out Outcome) Outcome {
	r.mu.Lock()
	r.committing = true
	messages := r.outbox
	r.mu.Unlock()
	out = r.e.sealer.seal(r.rec.ID, out, r.p.MaxResult)
	if len(messages) > 0 {
		packed, _ := json.Marshal(packedOutbox{r.op.Class, messages}) // strings and bytes never fail
		out.Outbox = r.e.sealer.wrap(r.rec.ID, sealedOutbox, packed)
	}
	return out
}

// Parcel is what one operation has emitted and nobody has sent yet, as far as is
// known.
type Parcel struct {
	Messages []Message
	claim    Claim
	class    string
}

// DueMessages returns what about limit operations, at most, have emitted: the
// longest waiting first. It is returned again, to whoever asks, unless Relayed was
// called within that time. The error is an *Error of kind ErrInvalid or ErrStore.
func (e *Engine) DueMessages(ctx context.Context, limit int, again time.Duration) ([]Parcel, error) {
	recs, err := e.due(ctx, DueRelay, limit, again)
	parcels := make([]Parcel, 0, len(recs))
	for _, rec := range recs {
		var p packedOutbox
		plain, err := e.sealer.unwrap(rec.ID, sealedOutbox, rec.Work)
		if err == nil {
			err = json.Unmarshal(plain, &p)
		}
		if err != nil { // an operator's case: it stays in the outbox
			e.observe(ctx, Event{Kind: EventStoreFailed, ID: rec.ID, State: rec.State, Fence: rec.Fence, Err: damaged(err)})
			continue
		}
		parcels = append(parcels, Parcel{Messages: p.Messages, claim: rec.Claim(), class: p.Class})
	}
	return parcels, err
}

// Relayed says that all messages of the parcel have been sent, and that whoever
// was to keep them has said so. The error is an *Error of kind ErrInvalid or
// ErrStore: they will be sent again.
func (e *Engine) Relayed(ctx context.Context, p Parcel) error {
	ws, err := e.workStore()
	if err != nil {
		return err
	}
	keep := e.policyOf(p.class).Retention
	err = e.step(ctx, claimTries, func(ctx context.Context) error { return ws.Relayed(ctx, p.claim, keep) })
	if err != nil && !errors.Is(err, ErrFenced) { // fenced: forgotten since, by an operator
		return &Error{Kind: ErrStore, Execution: Executed, RetryAfter: retryAfter, Cause: err}
	}
	e.observe(ctx, Event{Kind: EventRelayed, ID: p.claim.ID, Class: p.class, Fence: p.claim.Fence})
	return nil
}
