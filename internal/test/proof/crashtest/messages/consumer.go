package messages

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stetmsg"
)

const (
	lease      = 2 * time.Second
	sweepEvery = 500 * time.Millisecond
	frozenFor  = 3 * lease
	grouped    = 8
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_CRASHTEST_MESSAGES"

// order tells a child what to do.
type order struct {
	Broker string
	URL    string
	Place  crashtest.Place
	Batch  int  // of a relay; 0: it is a consumer
	Group  int  // of a consumer; see stetmsg.Options
	Emits  bool // the handler does
	Visit  crashtest.Visit
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
	*crashtest.Site
	ledger *crashtest.Ledger // where the store has no transactions
	engine *stet.Engine
	pass   func(fault.Point)
}

// work consumes or relays until ctx ends.
func work(ctx context.Context, o order) (err error) {
	s := &shop{order: o, pass: o.Visit.Mortal(nil).Pass}
	if s.Site, err = o.Place.Open(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	policy := stet.Policy{Lease: lease}
	if s.Postgres == nil {
		if s.ledger, err = crashtest.OpenLedger(o.Place.Dir); err != nil {
			return err
		}
		policy.Verify = s.verify
	}
	if s.engine, err = stet.New(s.Store, stet.Options{Policy: policy, SweepEvery: sweepEvery}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.engine.Close()) }()
	fault.Set(s.pass)
	if o.Batch > 0 {
		return s.relay(ctx)
	}
	return trades[o.Broker].consume(ctx, s)
}

// errBusy is what handlers fail with now and then.
var errBusy = stet.Retryable(errors.New("the warehouse did not answer"))

// newConsumer is the business: it makes a row, tells others, and fails now and
// then; in a transaction after that.
func newConsumer[M any](s *shop, envelope func(M) stetmsg.Envelope) (*stetmsg.Consumer[M], error) {
	o := stetmsg.Options[M]{
		Operation:   stetmsg.By(envelope, stetmsg.Header(scope, "message-id")),
		MaxAttempts: -1, // a message that was being processed at many kills is no poison
		Group:       s.Group,
		Backoff:     func(int) time.Duration { return 100*time.Millisecond + rand.N(400*time.Millisecond) },
		Observe:     func(context.Context, stetmsg.Decision) { s.pass(told) },
	}
	if s.Postgres == nil {
		o.Group = 0
		return stetmsg.New(s.engine, o, func(ctx context.Context, _ M) ([]byte, error) {
			if rand.IntN(50) == 0 {
				return nil, errBusy
			}
			// A request that was sent to another system cannot be recalled: the
			// lost lease ends ctx, and only the fence keeps the effect out.
			return s.handle(context.WithoutCancel(ctx), func(_ context.Context, e crashtest.Effect) error { return s.ledger.Have(e) })
		})
	}
	te, err := stet.WithTx(s.engine, s.Postgres)
	if err != nil {
		return nil, err
	}
	return stetmsg.NewTx(te, o, func(ctx context.Context, tx pgx.Tx, _ M) ([]byte, error) {
		result, err := s.handle(ctx, func(ctx context.Context, e crashtest.Effect) error { return crashtest.InPostgres(ctx, tx, e) })
		if err == nil && rand.IntN(50) == 0 {
			err = errBusy
		}
		return result, err
	})
}

// handle has the effect of an operation, as have does it.
func (s *shop) handle(ctx context.Context, have func(context.Context, crashtest.Effect) error) ([]byte, error) {
	run := stet.FromContext(ctx)
	e := crashtest.Effect{Charge: crashtest.Charge{ID: stet.NewKey(), Scope: scope, Key: run.Op().Key}, Fence: run.Fence(), Emits: s.Emits}
	if e.Emits {
		body, err := json.Marshal(e.Charge)
		if err == nil {
			err = run.Emit(stet.Message{To: outgoing, Key: e.Key, Body: body})
		}
		if err != nil {
			return nil, stet.Retryable(err)
		}
	}
	s.pass(effectBefore)
	err := have(ctx, e)
	s.pass(effectAfter)
	switch {
	case errors.Is(err, crashtest.ErrVoided):
		err = stet.Retryable(err)
	case err != nil && s.Postgres == nil:
		run.Declare(stet.MayHaveExecuted, 0)
	}
	return result(byRun, e.ID), err
}

// verify is a stet.Policy.Verify.
func (s *shop) verify(_ context.Context, st stet.Status) (stet.Resolution, error) {
	e, happened, err := s.ledger.Verify(scope, st.Op.Key, st.Record.Fence)
	switch {
	case err != nil:
		return stet.CannotKnow(), err
	case happened:
		return stet.ItHappened(stet.Outcome{Body: result(byVerifier, e.ID)}), nil
	}
	return stet.ItDidNotHappen(), nil
}

// Who has settled an operation, in its result. What a run has emitted is kept
// with the outcome that it settled itself: a verifier's has none.
const (
	byRun      = ""
	byVerifier = "verifier"
)

func result(by, effect string) []byte { return []byte(by + " " + effect) }
