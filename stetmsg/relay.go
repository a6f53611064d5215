package stetmsg

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	// DefaultRelayBatch is the default of RelayOptions.Batch.
	DefaultRelayBatch = 100
	// DefaultRelayAgain is the default of RelayOptions.Again.
	DefaultRelayAgain = 30 * time.Second
	// DefaultRelayPoll is the default of RelayOptions.Poll.
	DefaultRelayPoll = time.Second

	relayCalls = 8 // concurrent store calls that remove sent messages

	relayProbes = 2 // parcels that have to hang for their destination to be left alone
)

// IDHeader is the header in which the publishers of this module send the ID of a
// message, which is the same every time it is sent.
const IDHeader = "message-id"

// Publish sends messages, in this order if the broker keeps an order. It returns nil
// only if the broker has confirmed all of them. It must return when ctx ends; its
// messages then count as not sent. The packages of the brokers have functions that
// return one.
type Publish func(ctx context.Context, messages []stet.Message) error

// RelayOptions configure a Relay. The zero value is usable.
type RelayOptions struct {
	// Batch is how many operations' messages are sent together, at most
	// store.MaxBrowse. Default DefaultRelayBatch.
	Batch int
	// Again is when messages are sent again whose sending was not confirmed: the sender
	// crashed, or the broker refused them. Publish has a quarter of that for one
	// destination, or half if there is only one: half of this for all messages together,
	// then a quarter for those of each operation. A destination that takes none in that
	// time is tried after the others, and at most twice in each Again. Default
	// DefaultRelayAgain.
	Again time.Duration
	// Poll is the interval of reads of the store while this process emits nothing. Default DefaultRelayPoll.
	Poll time.Duration
	// ErrorLog gets what goes wrong, never a message. Default slog.Default().
	ErrorLog *slog.Logger
}

// Relay sends the messages that operations have emitted (see stet.Run.Emit), which the
// engine's store keeps with their outcomes until the broker has them. Any number of
// processes may run one; each message is sent at least once, with the same ID every
// time. Messages of one operation are sent in the order in which they were emitted;
// those of different operations in no order. A destination (Message.To) that refuses
// messages, or hangs, does not hold up others. Refused messages stay in the outbox and
// are tried again; each time the engine's observer gets a observe.Unsent, and the log
// a line. See stet.Options.CheckMessage.
type Relay struct {
	engine  *stet.Engine
	publish Publish
	o       RelayOptions

	mu    sync.Mutex
	hangs map[string]time.Time // destinations that hang, and when they are tried again
}

// NewRelay returns a relay. Wrong options are errors of kind stet.KindInvalid.
func NewRelay(engine *stet.Engine, publish Publish, o RelayOptions) (*Relay, error) {
	if engine == nil || publish == nil {
		return nil, misuse.Errorf("stetmsg: a relay needs an engine and a function that publishes")
	}
	if _, ok := store.As[store.OutboxStore](engine.Store()); !ok {
		return nil, misuse.Errorf("stetmsg: the store %T stores no messages; memory, sqlite, postgres and redis do", engine.Store())
	}
	if o.Batch < 0 || o.Batch > store.MaxBrowse || o.Again < 0 || o.Again > store.MaxDelay || o.Poll < 0 {
		return nil, misuse.Errorf("stetmsg: RelayOptions.Batch is %d, Again %v, Poll %v; Batch must be 0 to %d, Again at most %v, and none negative", o.Batch, o.Again, o.Poll, store.MaxBrowse, store.MaxDelay)
	}
	o.Batch = cmp.Or(o.Batch, DefaultRelayBatch)
	o.Again = cmp.Or(o.Again, DefaultRelayAgain)
	o.Poll = cmp.Or(o.Poll, DefaultRelayPoll)
	o.ErrorLog = cmp.Or(o.ErrorLog, slog.Default())
	return &Relay{engine: engine, publish: publish, o: o, hangs: make(map[string]time.Time)}, nil
}

// Run sends until ctx ends, and returns nil. Messages that it was sending at the end
// are sent, or will be sent again.
func (r *Relay) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		arrived := r.engine.Arrived() // before the read, so that no message is missed
		n, full, err := r.once(ctx)
		if err != nil && ctx.Err() == nil {
			r.o.ErrorLog.WarnContext(ctx, "stetmsg: messages were not relayed; they will be tried again", slog.Any("error", err))
		}
		if full && (err == nil || n > 0) {
			continue
		}
		wait := time.NewTimer(timer.Around(r.o.Poll))
		select {
		case <-wait.C:
		case <-arrived:
		case <-ctx.Done():
		}
		wait.Stop()
	}
	return nil
}

// Once sends the messages that wait now, a batch at most. It returns for how many
// operations all messages were sent, and an error if others were not. Messages to a
// destination that hangs wait, and are not an error until it is tried again.
func (r *Relay) Once(ctx context.Context) (n int, err error) {
	n, _, err = r.once(ctx)
	return n, err
}

// once is Once that also reports whether the batch was full.
func (r *Relay) once(ctx context.Context) (n int, full bool, err error) {
	n, err = r.engine.Relay(ctx, r.o.Batch, r.o.Again, func(operations [][]stet.Message, report func(int, error)) (err error) {
		full = len(operations) >= r.o.Batch
		send, cancel := context.WithTimeout(ctx, r.o.Again/2)
		defer cancel()
		groups := r.split(operations, report)
		within := max(r.o.Again/4, r.o.Again/2/time.Duration(max(len(groups), 1)))
		for _, g := range groups {
			if send.Err() != nil { // the others are due again
				return errors.Join(err, context.Cause(send))
			}
			fault.At(fault.RelayBefore)
			sent, unsent := r.send(send, within, g)
			fault.At(fault.RelaySent)
			confirm(sent)
			fault.At(fault.RelayAfter)
			err = errors.Join(err, unsent)
		}
		return err
	})
	return n, full, err
}

// parcel is what one operation has emitted.
type parcel struct {
	messages []stet.Message
	report   func(error) // nil: they were sent
}

// group is parcels that go to the same destinations.
type group struct {
	to      string // their names
	hung    bool   // the last time
	parcels []parcel
}

// split sorts the messages of operations by where they go: first to destinations that are not known to
// hang. Of the others those are left out that are not to be tried yet.
func (r *Relay) split(operations [][]stet.Message, report func(int, error)) []*group {
	by := make(map[string]*group)
	var first, last []*group
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for to, next := range r.hangs {
		if now.Sub(next) > 10*r.o.Again { // it has no messages any more
			delete(r.hangs, to)
		}
	}
	for i, messages := range operations {
		p := parcel{messages, func(err error) { report(i, err) }}
		to := destinations(messages)
		if g := by[to]; g != nil {
			g.parcels = append(g.parcels, p)
			continue
		}
		next, hung := r.hangs[to]
		g := &group{to: to, hung: hung, parcels: []parcel{p}}
		by[to] = g
		switch {
		case !hung:
			first = append(first, g)
		case !now.Before(next):
			last = append(last, g)
		}
	}
	slices.SortFunc(last, func(a, b *group) int { return r.hangs[a.to].Compare(r.hangs[b.to]) })
	return append(first, last[:min(len(last), 1)]...) // one at a time, to delay the others little
}

// destinations joins the destinations of an operation's messages.
func destinations(messages []stet.Message) string {
	if len(messages) == 1 {
		return messages[0].To
	}
	var to []string
	for _, m := range messages {
		if !slices.Contains(to, m.To) {
			to = append(to, m.To)
		}
	}
	slices.Sort(to)
	return strings.Join(to, "\x00")
}

// send publishes the messages of a group within a time limit, and returns the sent ones. If
// the broker does not take them together, each operation's messages are published separately.
func (r *Relay) send(all context.Context, within time.Duration, g *group) (sent []parcel, err error) {
	ctx, cancel := context.WithTimeout(all, within)
	defer cancel()
	hung := g.hung
	if !g.hung {
		var together []stet.Message
		for _, p := range g.parcels {
			together = append(together, p.messages...)
		}
		if hung, err = r.bounded(ctx, within/2, together); err == nil {
			sent = g.parcels
		} else if len(g.parcels) == 1 {
			g.parcels[0].report(err)
		}
	}
	if len(sent) == 0 && (g.hung || len(g.parcels) > 1) {
		sent, hung, err = r.oneByOne(ctx, within/4, g.parcels)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(sent) > 0 || !hung:
		delete(r.hangs, g.to)
	case all.Err() == nil || g.hung: // otherwise its own time limit was not the cause
		r.hangs[g.to] = time.Now().Add(r.o.Again / 2)
	}
	return sent, err
}

// oneByOne publishes parcels separately, each within a time limit, until some have timed out
// and none was sent. hung reports a timeout. The order is random, so that a hanging parcel is
// not always the first.
func (r *Relay) oneByOne(ctx context.Context, within time.Duration, parcels []parcel) (sent []parcel, hung bool, err error) {
	hanging := 0
	for _, i := range rand.Perm(len(parcels)) {
		if ctx.Err() != nil || hanging >= relayProbes && len(sent) == 0 {
			return sent, hanging > 0, cmp.Or(err, context.Cause(ctx))
		}
		hangs, e := r.bounded(ctx, within, parcels[i].messages)
		if hangs {
			hanging++
		}
		if e != nil {
			parcels[i].report(e)
			err = e // the last stands for the others
			continue
		}
		sent = append(sent, parcels[i])
	}
	return sent, hanging > 0, err
}

// bounded publishes messages within a time, and reports whether that was not enough.
func (r *Relay) bounded(ctx context.Context, within time.Duration, messages []stet.Message) (hangs bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err = r.publish(ctx, messages)
	return err != nil && ctx.Err() != nil, err
}

// confirm reports the sent messages to the store, some calls at a time.
func confirm(sent []parcel) {
	next := make(chan parcel, len(sent))
	for _, p := range sent {
		next <- p
	}
	close(next)
	var wg sync.WaitGroup
	for range min(relayCalls, len(sent)) {
		wg.Go(func() {
			for p := range next {
				p.report(nil)
			}
		})
	}
	wg.Wait()
}
