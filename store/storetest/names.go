package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// nameChecks are about the two names of an operation during a change of namespace.
var nameChecks = []check{
	{"an operation has one record under both of its names", "a retry must get the first outcome, whichever process receives it.",
		oneRecord},
	{"a claim that arrives late under one name does not run beside the other", "a process may be paused between its reads and its claim.",
		lateClaim},
	{"of many calls under two names one runs", "processes of two deployments receive the same key at the same moment.",
		raceOfNames},
}

// deployed returns an engine of a step of the change; see stet.Options.Previous. Step 0 is before it.
func (f *fixture) deployed(s store.Store, step int) *stet.Engine {
	f.Helper()
	o := stet.Options{StoreTimeout: patience / 2, SweepEvery: -1}
	if step > 0 {
		o.Namespace, o.ClaimPrevious = "v2", step == 1
		o.Previous = func(_ context.Context, op stet.Op) (string, stet.Op) { return "", op }
	}
	e, err := stet.New(s, o)
	if err != nil {
		f.Fatalf("stet.New: %v", err)
	}
	f.Cleanup(func() { _ = e.Close() })
	return e
}

// mixed are two steps of the change whose processes run at the same time.
type mixed struct{ first, second int }

func (m mixed) String() string { return fmt.Sprintf("steps %d and %d", m.first, m.second) }

func oneRecord(f *fixture) {
	for _, at := range []mixed{{0, 1}, {1, 0}, {1, 2}, {2, 1}, {0, 2}} {
		first, second := f.deployed(f.store, at.first), f.deployed(f.store, at.second)
		s := f.service()
		err := s.nothing(first)
		if res, again := s.do(second); stet.KindOf(err) != stet.KindRetryable || again != nil || res.Attempt != 2 {
			f.Errorf("%v: a released run ended with %v, and the next one with %+v, %v; want attempt 2", at, err, res, again)
		}
		s.replays(at, first)
		s.replays(at, second)
		s.ran(at, 1)
	}
}

// pausedCall lets a call be late: the first call of a method waits until it may continue.
type pausedCall struct {
	method string
	begun  sync.Once
	sent   chan struct{} // closed when the call waits
	may    chan struct{} // closed when it may continue
	resume func()        // closes may
}

func newPausedCall(method string) *pausedCall {
	p := &pausedCall{method: method, sent: make(chan struct{}), may: make(chan struct{})}
	p.resume = sync.OnceFunc(func() { close(p.may) })
	return p
}

// wait waits if it is the first call.
func (p *pausedCall) wait() {
	p.begun.Do(func() {
		close(p.sent)
		<-p.may
	})
}

// plan is a Plan without faults.
func (p *pausedCall) plan(c Call) Fault {
	if c.Method == p.method {
		p.wait()
	}
	return NoFault
}

// begin calls do in a goroutine, and returns when its call waits, or do has returned.
func (p *pausedCall) begin(do func() error) (done <-chan error) {
	ended, result := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		result <- do()
	}()
	select {
	case <-p.sent:
	case <-ended:
	}
	return result
}

func lateClaim(f *fixture) {
	for _, at := range []mixed{{1, 2}, {2, 1}} {
		s, paused := f.service(), newPausedCall("Claim")
		late := f.deployed(Faulty(f.store, paused.plan), at.first)
		refused := paused.begin(func() error {
			_, err := s.do(late)
			return err
		})
		_, err := stet.Do(f.ctx, f.deployed(f.store, at.second), s.op, func(context.Context) (string, error) {
			paused.resume()
			if err := <-refused; stet.KindOf(err) != stet.KindInFlight {
				f.Errorf("%v: a claim that arrived beside a run under the other name got %v; want KindInFlight", at, err)
			}
			return fmt.Sprint("run ", s.runs.Add(1)), nil
		})
		paused.resume()
		if err != nil {
			f.Errorf("%v: the run under the other name got %v", at, err)
		}
		s.replays(at, late)
		s.ran(at, 1)
	}
}

func raceOfNames(f *fixture) {
	engines := []*stet.Engine{f.deployed(f.store, 1), f.deployed(f.store, 2), f.deployed(f.store, 1), f.deployed(f.store, 2)}
	for range 10 {
		s := f.service()
		race(len(engines), func(i int) {
			for range racers {
				if _, err := s.waiting(engines[i]); stet.KindOf(err) != stet.KindInFlight {
					break
				}
				f.beside() // two claims were given up because of each other
			}
		})
		for i, e := range engines {
			s.replays(mixed{i%2 + 1, 2 - i%2}, e)
		}
		s.ran(mixed{1, 2}, 1)
	}
}

// nameWorkChecks are nameChecks for a WorkStore.
var nameWorkChecks = []check{
	{"of two jobs of one operation under two names one runs", "a client may send its request to processes of two deployments, and both accept it.",
		twoJobs},
}

func twoJobs(f *fixture) {
	s, paused := f.service(), newPausedCall("Accept")
	late, worker := f.deployed(Faulty(f.store, paused.plan), 1), f.deployed(f.store, 2)
	done := paused.begin(func() error {
		_, err := s.accepted(late)
		return err
	})
	_, err := s.accepted(worker)
	paused.resume()
	items := []stet.Item{s.item(f.deployed(f.store, 0)), s.item(worker)}
	if bytes.Compare(items[0].ID[:], items[1].ID[:]) > 0 {
		slices.Reverse(items)
	}
	if err = errors.Join(err, <-done); err == nil {
		if _, early := worker.Take(f.ctx, items[1]); stet.KindOf(early) != stet.KindInFlight {
			err = fmt.Errorf("beside the other job it got %w", early)
		}
	}
	run, failed := worker.Take(f.ctx, items[0])
	if err = errors.Join(err, failed); err == nil {
		err = run.Settle(f.ctx, stet.Outcome{Body: []byte("run 1")})
	}
	f.h.pass(f, 2*time.Second) // until it is due again
	run, failed = worker.Take(f.ctx, items[1])
	if err = errors.Join(err, failed); err != nil || !run.Replayed() || string(run.Outcome().Body) != "run 1" {
		f.Errorf("of two jobs the second got %v; want the outcome of the first", err)
	}
}

// pausedTx has its first transaction wait before it begins.
type pausedTx[Tx any] struct {
	store.TxLocker[Tx]
	call *pausedCall
}

// Unwrap implements store.Wrapper.
func (p pausedTx[Tx]) Unwrap() store.Store { return p.TxLocker }

// RunTx implements store.TxStore.
func (p pausedTx[Tx]) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	p.call.wait()
	return p.TxLocker.RunTx(ctx, req, keep, fn)
}

// namesTx has a transaction begin under one name, after its reads, while another one runs under
// the other name, and after its commit.
func (c *txCase[Tx]) namesTx() {
	for _, at := range []mixed{{1, 2}, {2, 1}} {
		c.lateTx(at, false)
		c.lateTx(at, true)
	}
}

// lateTx has a transaction of the first step begin beside or after one of the second.
func (c *txCase[Tx]) lateTx(at mixed, after bool) {
	locker, _ := store.As[store.TxLocker[Tx]](c.fixture.store)
	s, row, paused := c.service(), stet.NewKey(), newPausedCall("RunTx")
	late := c.tx(c.deployed(c.fixture.store, at.first), pausedTx[Tx]{locker, paused})
	run := func(te *stet.TxEngine[Tx], then func()) (stet.Result[string], error) {
		return stet.DoTx(c.ctx, te, s.op, func(ctx context.Context, tx Tx) (string, error) {
			then()
			return fmt.Sprint("run ", s.runs.Add(1)), c.h.Write(ctx, tx, row)
		})
	}
	ended := make(chan struct{})
	done := paused.begin(func() error {
		defer close(ended)
		res, err := run(late, func() {})
		if err == nil && !res.Replayed {
			err = fmt.Errorf("%+v", res)
		}
		return err
	})
	_, err := run(c.tx(c.deployed(c.fixture.store, at.second), locker), func() {
		if after {
			return
		}
		paused.resume()
		select {
		case <-ended:
		case <-time.After(waits): // a store may have it wait
		}
	})
	paused.resume()
	beside := <-done
	if !after && stet.KindOf(beside) == stet.KindInFlight {
		beside = nil
	}
	if err = errors.Join(err, beside); err != nil {
		c.Errorf("%v, after the commit: %v: two transactions under two names got %v; want one run, and a replay or KindInFlight", at, after, err)
	}
	c.rows(at.String(), row, 1)
}
