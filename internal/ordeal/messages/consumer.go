package messages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/stetmsg"
)

const (
	lease      = 2 * time.Second
	sweepEvery = 500 * time.Millisecond
	frozenFor  = 3 * lease
	frozenPoll = 20 * time.Millisecond
	thawedFor  = 500 * time.Millisecond
	grouped    = 8
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_ORDEAL_MESSAGES_CHILD"

// order tells a child what to do, and its parent how long to wait for its end.
type order struct {
	Broker   string
	URL      string
	Place    place
	Batch    int           // of a relay; 0: it is a consumer
	Group    int           // of a consumer; see stetmsg.Options
	Emits    bool          // the handler does
	Point    fault.Point   // where to die; "" not at all
	Visit    int           // at which visit of it, from 1
	Patience time.Duration // until it is killed where it is
}

// custom makes consumers differ: one in three handles messages one by one and
// emits; one in groups, and emits, so that the group is rolled back and its
// messages handled again; one in groups that are committed.
func (o *order) custom(i int) {
	o.Emits = i%3 != 2
	if i%3 != 0 {
		o.Group = grouped
	}
}

// Main is called first by programs that use this package: in a child it consumes
// or relays until it is killed or told to end, and does not return.
func Main() { child.Main(childEnv, work) }

// shop is what a child is.
type shop struct {
	order
	*site
	engine *stet.Engine
	pass   func(fault.Point)
}

// work consumes or relays until ctx ends.
func work(ctx context.Context, o order) (err error) {
	s := &shop{order: o, pass: newHook(o)}
	if s.site, err = o.Place.open(ctx, 20); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	policy := stet.Policy{Lease: lease}
	if s.tx == nil {
		policy.Verify = ledger{s.pool}.verify
	}
	if s.engine, err = stet.New(s.store, stet.Options{Policy: policy, SweepEvery: sweepEvery}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.engine.Close()) }()
	fault.Set(s.pass)
	if o.Batch > 0 {
		return s.relay(ctx)
	}
	return trades[o.Broker].consume(ctx, s)
}

// newHook makes the child die, or stop, at its point.
func newHook(o order) func(fault.Point) {
	at, signal := o.Point, syscall.SIGKILL
	if o.Point == frozen {
		at, signal = effectBefore, syscall.SIGSTOP
	}
	var visits atomic.Int64
	return func(p fault.Point) {
		if p != at || visits.Add(1) != int64(o.Visit) {
			return
		}
		_ = syscall.Kill(os.Getpid(), signal)
		if signal == syscall.SIGKILL {
			select {} // the signal is on its way: not one step further
		}
	}
}

// errBusy is what handlers fail with now and then.
var errBusy = fmt.Errorf("the warehouse did not answer: %w", stet.ErrRetryable)

// newConsumer is the business: it makes a row, tells others, and fails now and
// then; in a transaction after that.
func newConsumer[M any](s *shop, envelope func(M) stetmsg.Envelope) (*stetmsg.Consumer[M], error) {
	o := stetmsg.Options[M]{
		Operation:   stetmsg.By(envelope, stetmsg.Header(scope, "message-id")),
		MaxAttempts: -1, // a message that was in hand at many kills is no poison
		Group:       s.Group,
		Backoff:     func(int) time.Duration { return 100*time.Millisecond + rand.N(400*time.Millisecond) },
		Observe:     func(context.Context, stetmsg.Decision) { s.pass(told) },
	}
	if s.tx == nil {
		o.Group = 0
		return stetmsg.New(s.engine, o, func(ctx context.Context, _ M) ([]byte, error) {
			if rand.IntN(50) == 0 {
				return nil, errBusy
			}
			// What is on its way to another system cannot be called back: the
			// lost lease ends ctx, and only the fence keeps the effect out.
			return s.handle(context.WithoutCancel(ctx), ledger{s.pool}.have)
		})
	}
	return stetmsg.NewTx(s.engine, s.tx, o, func(ctx context.Context, tx pgx.Tx, _ M) ([]byte, error) {
		result, err := s.handle(ctx, func(ctx context.Context, e effect) error { return e.insert(ctx, tx) })
		if err == nil && rand.IntN(50) == 0 {
			err = errBusy
		}
		return result, err
	})
}

// handle has the effect of an operation, as have does it.
func (s *shop) handle(ctx context.Context, have func(context.Context, effect) error) ([]byte, error) {
	run := stet.FromContext(ctx)
	e := effect{id: run.Key(), fence: run.Fence(), nonce: stet.NewKey(), emits: s.Emits}
	if e.emits {
		body, err := json.Marshal(letter{Order: e.id, Nonce: e.nonce})
		if err == nil {
			err = run.Emit(stet.Message{To: outgoing, Key: e.id, Body: body})
		}
		if err != nil {
			return nil, errors.Join(err, stet.ErrRetryable)
		}
	}
	s.pass(effectBefore)
	err := have(ctx, e)
	s.pass(effectAfter)
	if err != nil && !errors.Is(err, errRefused) && s.tx == nil {
		run.OutcomeUnknown(0)
	}
	return outcome(byRun, e.nonce).Result, err
}
