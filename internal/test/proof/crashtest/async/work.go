package async

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

// The kinds of operations, which are the names of their handlers.
const (
	// inTx has its effect in one transaction with its outcome.
	inTx = "tx"
	// safe has three steps: transactional, idempotent, transactional.
	safe = "safe"
	// once has three steps, of which the second must not run twice.
	once = "once"
	// outside has its effect outside of the store, where a verifier finds it.
	outside = "outside"
)

// The parts of operations. The one in the middle has its effect outside of the
// store; order is the service's own row, in the transaction of the acceptance.
const (
	ordered = "order"
	reserve = "reserve"
	charge  = "charge"
	ship    = "ship"
)

// Points of this package: the product has none there.
const (
	chargeBefore  fault.Point = "charge.before"
	chargeAfter   fault.Point = "charge.after"
	inStep        fault.Point = "step.inside" // in a transaction that has written
	enqueueBefore fault.Point = "enqueue.before"
	enqueueAfter  fault.Point = "enqueue.after"
	told          fault.Point = "told" // a message was watched, and the broker does not know
)

const (
	lease        = time.Second
	recoverEvery = 300 * time.Millisecond
	again        = 2 * time.Second // until an operation is passed to a queue again
	slow         = lease/3 + 150*time.Millisecond
)

// job is the payload.
type job struct {
	Key string `json:"key"`
}

// receipt is the outcome: which effects it stands for.
type receipt struct {
	Key string   `json:"key"`
	IDs []string `json:"ids"`
}

var (
	errBusy = errors.New("the warehouse does not answer")
	errFull = stet.Retryable(errors.New("the warehouse is full"))
)

// shop is where the work is done.
type shop struct {
	ledger *crashtest.Ledger
	pass   func(fault.Point)
	// dawdles says that handlers may take their time in a transaction.
	dawdles bool
}

func effectOf(ctx context.Context, key, what string) crashtest.Effect {
	run := stet.FromContext(ctx)
	return crashtest.Effect{Charge: crashtest.Charge{ID: stet.NewKey(), Scope: run.Op().Scope, Key: key}, Part: what, Fence: run.Fence(), Attempt: run.Attempt()}
}

// dawdle takes longer than it is until a heartbeat, now and then.
func dawdle(ctx context.Context) {
	if rand.IntN(8) == 0 {
		_ = crash.Pause(ctx, slow)
	}
}

// charge has an effect outside of the store.
func (s *shop) charge(ctx context.Context, key string) (crashtest.Effect, error) {
	e := effectOf(ctx, key, charge)
	s.pass(chargeBefore)
	err := s.ledger.Have(e)
	if errors.Is(err, crashtest.ErrVoided) {
		err = stet.Retryable(err)
	}
	s.pass(chargeAfter)
	return e, err
}

// gave remembers what a step has given its handler.
func (s *shop) gave(ctx context.Context, what string, e crashtest.Effect) error {
	e.Part, e.Attempt = what, stet.FromContext(ctx).Attempt()
	return s.ledger.Add(crashtest.Gave, e)
}

// outside is a handler in lease mode.
func (s *shop) outside(ctx context.Context, j job) (receipt, error) {
	if rand.IntN(20) == 0 {
		return receipt{}, errFull
	}
	run := stet.FromContext(ctx)
	if err := run.Progress(ctx, 0.5, "half of it"); err != nil {
		run.Declare(stet.NotExecuted, 0)
		return receipt{}, err
	}
	dawdle(ctx)
	e, err := s.charge(ctx, j.Key)
	if err != nil {
		return receipt{}, err
	}
	dawdle(ctx)
	return receiptOf(e), nil
}

func receiptOf(es ...crashtest.Effect) receipt {
	r := receipt{Key: es[0].Key}
	for _, e := range es {
		r.IDs = append(r.IDs, e.ID)
	}
	return r
}

// verifier looks into the ledger.
func (s *shop) verifier(_ context.Context, st stet.Status) (stet.Resolution, error) {
	e, ok, err := s.ledger.Verify(st.Op.Scope, st.Op.Key, st.Record.Fence)
	switch {
	case err != nil:
		return stet.CannotKnow(), err
	case !ok:
		return stet.ItDidNotHappen(), nil
	}
	body, err := json.Marshal(receiptOf(e))
	return stet.ItHappened(stet.Outcome{Body: body}), err
}

// handlers gives a worker the handlers of a store with transactions.
func (s *shop) handlers(w *stetwork.Worker, e *stet.Engine, site *crashtest.Site) error {
	switch {
	case site.SQLite != nil:
		return register(s, w, e, site.SQLite, crashtest.InSQLite)
	case site.MySQL != nil:
		return register(s, w, e, site.MySQL, crashtest.InMySQL)
	}
	return register(s, w, e, site.Postgres, crashtest.InPostgres)
}

// register gives a worker the handlers whose effects are rows of a table, which
// insert writes.
func register[Tx any](s *shop, w *stetwork.Worker, engine *stet.Engine, store store.WorkTxStore[Tx], insert func(context.Context, Tx, crashtest.Effect) error) error {
	te, err := stet.WithTx(engine, store)
	if err != nil {
		return err
	}
	row := func(ctx context.Context, tx Tx, key, what string) (crashtest.Effect, error) {
		e := effectOf(ctx, key, what)
		err := insert(ctx, tx, e)
		s.pass(inStep)
		return e, err
	}
	stepTx := func(ctx context.Context, key, what string) (crashtest.Effect, error) {
		e, err := stet.StepTx(ctx, te, what, func(ctx context.Context, tx Tx) (crashtest.Effect, error) { return row(ctx, tx, key, what) })
		if err == nil {
			err = s.gave(ctx, what, e)
		}
		return e, err
	}
	steps := func(middle func(context.Context, string) (crashtest.Effect, error)) func(context.Context, job) (receipt, error) {
		return func(ctx context.Context, j job) (receipt, error) {
			first, err := stepTx(ctx, j.Key, reserve)
			if err != nil {
				return receipt{}, err
			}
			dawdle(ctx)
			second, err := middle(ctx, j.Key)
			if err == nil {
				err = s.gave(ctx, charge, second)
			}
			if err == nil && rand.IntN(20) == 0 {
				err = errBusy
			}
			if err != nil {
				return receipt{}, err
			}
			third, err := stepTx(ctx, j.Key, ship)
			return receiptOf(first, second, third), err
		}
	}
	return errors.Join(
		stetwork.HandleTx(w, te, inTx, func(ctx context.Context, tx Tx, j job) (receipt, error) {
			e, err := row(ctx, tx, j.Key, ship)
			if err == nil && rand.IntN(20) == 0 {
				err = errBusy
			}
			if s.dawdles {
				dawdle(ctx)
			}
			return receiptOf(e), err
		}),
		stetwork.HandleIdempotent(w, safe, steps(s.chargeAgain)),
		stetwork.HandleIdempotent(w, once, steps(s.chargeOnce)),
	)
}

// chargeAgain is a step that may run again: of doing it twice, one is to count.
func (s *shop) chargeAgain(ctx context.Context, key string) (crashtest.Effect, error) {
	return stet.Step(ctx, charge, func(ctx context.Context) (crashtest.Effect, error) {
		e := effectOf(ctx, key, charge)
		s.pass(chargeBefore)
		s.pass(chargeAfter)
		return e, nil
	})
}

// chargeOnce is a step that must not run twice: the ledger would have both.
func (s *shop) chargeOnce(ctx context.Context, key string) (crashtest.Effect, error) {
	return stet.StepOnce(ctx, charge, func(ctx context.Context) (crashtest.Effect, error) {
		if rand.IntN(20) == 0 {
			return crashtest.Effect{}, errFull
		}
		return s.charge(ctx, key)
	})
}
