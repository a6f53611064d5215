package async

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/stetwork"
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
// store.
const (
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
	told          fault.Point = "told" // a message was looked after, and the broker does not know
)

const (
	lease        = time.Second
	recoverEvery = 300 * time.Millisecond
	again        = 2 * time.Second // until what was handed to a queue is handed over again
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
	errVoided = fmt.Errorf("a verifier has said that this run has no effect: %w", stet.ErrRetryable)
	errBusy   = errors.New("the warehouse does not answer")
	errFull   = fmt.Errorf("the warehouse is full: %w", stet.ErrRetryable)
)

// shop is where the work is done.
type shop struct {
	ledger *ledger
	pass   func(fault.Point)
	// dawdles says that handlers may take their time in a transaction.
	dawdles bool
}

func effectOf(ctx context.Context, key, what string) entry {
	run := stet.FromContext(ctx)
	return entry{Kind: effect, Key: key, What: what, ID: stet.NewKey(), Fence: run.Fence(), Attempt: run.Attempt()}
}

// dawdle takes longer than it is until a heartbeat, now and then.
func dawdle(ctx context.Context) {
	if rand.IntN(8) == 0 {
		pause(ctx, slow)
	}
}

// charge has an effect outside of the store.
func (s *shop) charge(ctx context.Context, key string) (entry, error) {
	e := effectOf(ctx, key, charge)
	s.pass(chargeBefore)
	err := s.ledger.charges(e)
	s.pass(chargeAfter)
	return e, err
}

// gave remembers what a step has given its handler.
func (s *shop) gave(ctx context.Context, key, what, id string) error {
	return s.ledger.add(entry{Kind: gave, Key: key, What: what, ID: id, Attempt: stet.FromContext(ctx).Attempt()})
}

// outside is a handler in lease mode.
func (s *shop) outside(ctx context.Context, j job) (receipt, error) {
	if rand.IntN(20) == 0 {
		return receipt{}, errFull
	}
	run := stet.FromContext(ctx)
	if err := run.Progress(ctx, 0.5, "half of it"); err != nil {
		run.NothingHappened()
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

func receiptOf(es ...entry) receipt {
	r := receipt{Key: es[0].Key}
	for _, e := range es {
		r.IDs = append(r.IDs, e.ID)
	}
	return r
}

// verifier looks into the ledger.
func (s *shop) verifier(_ context.Context, u stet.Unresolved) (stet.Verdict, error) {
	e, ok, err := s.ledger.verify(u.Op.Key, u.Fence)
	switch {
	case err != nil:
		return stet.CannotKnow(), err
	case !ok:
		return stet.ItDidNotHappen(), nil
	}
	out, err := stet.OutcomeOf(receiptOf(e), nil)
	return stet.ItHappened(out), err
}

// register gives a worker the handlers whose effects are rows of a table, which
// insert writes.
func register[Tx any](s *shop, w *stetwork.Worker, store stet.WorkTxStore[Tx], insert func(context.Context, Tx, entry) error) error {
	row := func(ctx context.Context, tx Tx, key, what string) (entry, error) {
		e := effectOf(ctx, key, what)
		err := insert(ctx, tx, e)
		s.pass(inStep)
		return e, err
	}
	stepTx := func(ctx context.Context, key, what string) (entry, error) {
		e, err := stet.StepTx(ctx, store, what, func(ctx context.Context, tx Tx) (entry, error) { return row(ctx, tx, key, what) })
		if err == nil {
			err = s.gave(ctx, key, what, e.ID)
		}
		return e, err
	}
	steps := func(middle func(context.Context, string) (entry, error)) func(context.Context, job) (receipt, error) {
		return func(ctx context.Context, j job) (receipt, error) {
			first, err := stepTx(ctx, j.Key, reserve)
			if err != nil {
				return receipt{}, err
			}
			dawdle(ctx)
			second, err := middle(ctx, j.Key)
			if err == nil {
				err = s.gave(ctx, j.Key, charge, second.ID)
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
		stetwork.HandleTx(w, store, inTx, func(ctx context.Context, tx Tx, j job) (receipt, error) {
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
func (s *shop) chargeAgain(ctx context.Context, key string) (entry, error) {
	return stet.Step(ctx, charge, stet.StepIdempotent, func(ctx context.Context) (entry, error) {
		e := effectOf(ctx, key, charge)
		s.pass(chargeBefore)
		s.pass(chargeAfter)
		return e, nil
	})
}

// chargeOnce is a step that must not run twice: the ledger would have both.
func (s *shop) chargeOnce(ctx context.Context, key string) (entry, error) {
	return stet.Step(ctx, charge, stet.StepOnce, func(ctx context.Context) (entry, error) {
		if rand.IntN(20) == 0 {
			return entry{}, errFull
		}
		return s.charge(ctx, key)
	})
}
