package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

var engineWorkChecks = []check{
	{"one lost request or reply about work is not noticed", "networks lose both; the engine repeats the call, and the store must know it again.",
		oneFaultAboutWork},
	{"an unresolved step that did not happen runs again, once", "once that is known, the operation must end, and completed steps stay completed.",
		openStep},
	{"due work comes again after a lost reply", "work in a lost reply must not be lost.",
		dueOutage},
	{"without an answer to a take nothing is executed, and the work comes back", "no durable claim, no execution; and a take whose answer was lost must not lock the work away.",
		takeOutage},
	{"work with an outcome that could not be written is never executed again", "the effect has happened; the key becomes unknown instead.",
		workOutage},
	{"with calls failing at random accepted work is neither lost nor done twice, and its messages come with its outcome", "this is what the store is for.",
		chaosOfWork},
}

// accepted accepts the service's operation through e.
func (s *service) accepted(e *stet.Engine) (stet.Status, error) {
	return e.Accept(s.f.ctx, s.op, stet.Work{Name: "ship", Payload: []byte("order 7")})
}

// item is what a queue carries of it.
func (s *service) item(e *stet.Engine) stet.Item {
	return stet.Item{ID: e.ID(s.op.Scope, s.op.Key), Name: "ship"}
}

// work runs all available work.
func (s *service) work(e *stet.Engine) (*stet.Lease, error) {
	run, err := e.Take(s.f.ctx, s.item(e))
	if err != nil || run.Replayed() {
		return run, err
	}
	value := fmt.Sprint("run ", s.runs.Add(1))
	if s.f.can.outbox != nil {
		if err := run.Emit(stet.Message{To: "shipped", Body: []byte(value)}); err != nil {
			return run, err
		}
	}
	return run, run.Settle(s.f.ctx, stet.Outcome{Body: []byte(value)})
}

// stands requires that the outcome be what a status page shows.
func (s *service) stands(what fmt.Stringer, e *stet.Engine, state store.State, result string) {
	s.f.Helper()
	st, err := e.Status(s.f.ctx, s.op.Scope, s.item(e).ID)
	if err != nil || st.Record.State != state || string(st.Outcome.Body) != result {
		s.f.Errorf("%v: the status is %s with %s, %v; want %v with %q", what, show(st.Record), brief(st.Outcome.Body), err, state, result)
	}
}

func oneFaultAboutWork(f *fixture) {
	healthy := f.engine(f.store, stet.Policy{})
	for _, method := range []string{"Accept", "Take", "Save", "Return", "Settle", "Look"} {
		bothWays(method, true, func(o *outage) {
			s := f.service()
			e := f.engine(Faulty(f.store, o.plan), stet.Policy{})
			if err := s.life(e); err != nil {
				f.Errorf("%v: %v", o, err)
			}
			s.ran(o, 1)
			s.stands(o, healthy, store.Completed, "run 1")
		})
	}
	bothWays("Cancel", true, func(o *outage) {
		s := f.service()
		e := f.engine(Faulty(f.store, o.plan), stet.Policy{})
		if _, err := s.accepted(e); err != nil {
			f.Errorf("%v: Accept: %v", o, err)
		}
		if st, err := e.Cancel(f.ctx, s.op.Scope, s.item(e).ID); err != nil || st.Record.State != store.Failed {
			f.Errorf("%v: Cancel: %s, %v", o, show(st.Record), err)
		}
		if run, err := s.work(healthy); err != nil || !run.Replayed() {
			f.Errorf("%v: a take of a cancelled operation: %v", o, err)
		}
		s.ran(o, 0)
	})
}

// life takes the operation through all that can happen to it.
func (s *service) life(e *stet.Engine) error {
	ctx := s.f.ctx
	if st, err := s.accepted(e); err != nil || !st.New {
		return fmt.Errorf("accept: new is %v: %w", st.New, err)
	}
	if st, err := e.Status(ctx, s.op.Scope, s.item(e).ID); err != nil || st.Record.State != store.Accepted || st.Name != "ship" {
		return fmt.Errorf("status: %s: %w", show(st.Record), err)
	}
	for _, last := range []bool{false, true} {
		run, err := e.Take(ctx, s.item(e))
		if err != nil {
			return fmt.Errorf("take: %w", err)
		}
		v, err := stet.StepOnce(run.Context(), "ship", func(context.Context) (string, error) {
			return fmt.Sprint("run ", s.runs.Add(1)), nil
		})
		if err != nil || v != "run 1" || run.Declared() == stet.MayHaveExecuted {
			return fmt.Errorf("step: %q: %w", v, err)
		}
		if !last {
			if err := run.Release(ctx, stet.Again{}); err != nil {
				return fmt.Errorf("return: %w", err)
			}
			continue
		}
		if s.f.can.outbox != nil {
			if err := run.Emit(stet.Message{To: "shipped"}); err != nil {
				return err
			}
		}
		if err := run.Settle(ctx, stet.Outcome{Body: []byte(v)}); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
	}
	if s.f.can.outbox == nil {
		return nil
	}
	due := 0
	n, err := e.Relay(ctx, 10, s.f.long, func(operations [][]stet.Message, told func(int, error)) error {
		if due = len(operations); due != 1 || len(operations[0]) != 1 {
			return errors.New("want one message of one operation")
		}
		told(0, nil)
		return nil
	})
	if err != nil || n != 1 {
		return fmt.Errorf("of %d operations with messages, %d are sent: %w", due, n, err)
	}
	return nil
}

func openStep(f *fixture) {
	for _, method := range []string{"Amend", "Release", "Look"} {
		bothWays(method, true, func(o *outage) {
			s := f.service()
			e := f.engine(Faulty(f.store, o.plan), stet.Policy{Stale: stet.MayRunAgain()})
			if _, err := s.accepted(e); err != nil {
				f.Errorf("%v: Accept: %v", o, err)
			}
			if run, err := s.steps(e, errors.New("no answer")); stet.KindOf(err) != stet.KindUnknown {
				f.Errorf("%v: the step: %v; want KindUnknown", o, err)
			} else if err := run.MarkUnknown(f.ctx); err != nil {
				f.Errorf("%v: MarkUnknown: %v", o, err)
			}
			f.pass(1)
			if _, err := e.Take(f.ctx, s.item(e)); stet.KindOf(err) != stet.KindUnknown {
				f.Errorf("%v: a take, whose policy would run it again: %v; want KindUnknown", o, err)
			}
			for range 2 {
				if err := e.Resolve(f.ctx, f.read(s.item(e).ID), "", stet.ItDidNotHappen()); err != nil {
					f.Errorf("%v: Resolve: %v", o, err)
				}
			}
			run, err := s.steps(e, nil)
			if err != nil || run.Attempt() != 2 {
				f.Errorf("%v: the step, after it was resolved as not happened: %v", o, err)
				return
			}
			if err := run.Settle(f.ctx, stet.Outcome{}); err != nil {
				f.Errorf("%v: Settle: %v", o, err)
			}
			s.ran(o, 2)
		})
	}
}

// steps takes the operation, and has a first step done, once, and a second one end
// with an error.
func (s *service) steps(e *stet.Engine, end error) (*stet.Lease, error) {
	run, err := e.Take(s.f.ctx, s.item(e))
	if err != nil {
		return run, err
	}
	_, err = stet.StepOnce(run.Context(), "reserve", func(context.Context) (int, error) {
		if run.Attempt() > 1 {
			s.f.Error("a step that was done is done again")
		}
		return 1, nil
	})
	if err != nil {
		return run, err
	}
	_, err = stet.StepOnce(run.Context(), "ship", func(context.Context) (int64, error) { return s.runs.Add(1), end })
	return run, err
}

func dueOutage(f *fixture) {
	bothWays("Due", true, func(o *outage) {
		s := f.service()
		e := f.engine(Faulty(f.store, o.plan), stet.Policy{})
		if _, err := s.accepted(e); err != nil {
			f.Errorf("%v: Accept: %v", o, err)
		}
		if items, err := e.Due(f.ctx, 10, f.unit); stet.KindOf(err) != stet.KindStore || len(items) != 0 {
			f.Errorf("%v: Due: %d, %v; want KindStore", o, len(items), err)
		}
		f.pass(1)
		items, err := e.Due(f.ctx, 10, f.unit)
		if err != nil || len(items) != 1 || items[0] != s.item(e) {
			f.Errorf("%v: afterwards Due returned %v, %v; want the work", o, items, err)
		}
		if _, err := s.work(e); err != nil {
			f.Errorf("%v: Take: %v", o, err)
		}
		s.ran(o, 1)
	})
}

func takeOutage(f *fixture) {
	bothWays("Take", false, func(o *outage) {
		s := f.service()
		e := f.engine(Faulty(f.store, o.plan), stet.Policy{})
		if _, err := s.accepted(e); err != nil {
			f.Errorf("%v: Accept: %v", o, err)
		}
		if _, err := s.work(e); stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.NotExecuted {
			f.Errorf("%v: Take: %v; want KindStore, not executed", o, err)
		}
		s.ran(o, 0)
		o.over.Store(true)
		for end := time.Now().Add(patience); ; {
			if _, err := s.work(e); err == nil {
				break
			} else if stet.KindOf(err) != stet.KindInFlight || time.Now().After(end) {
				f.Errorf("%v: once it was over, Take: %v; want to run", o, err)
				break
			}
			time.Sleep(5 * time.Millisecond) // between two looks
		}
		s.ran(o, 1)
	})
}

func workOutage(f *fixture) {
	healthy := f.engine(f.store, f.short())
	bothWaysAtOnce("Settle", func(o *outage) {
		s := f.service()
		e := f.engineWithin(giveUp, Faulty(f.store, o.plan), f.short())
		if _, err := s.accepted(e); err != nil {
			f.Errorf("%v: Accept: %v", o, err)
		}
		if _, err := s.work(e); stet.KindOf(err) != stet.KindUnknown {
			f.Errorf("%v: Settle: %v; want KindUnknown", o, err)
		}
		if o.fault == FailAfter { // it was written, and the answer was lost
			s.stands(o, healthy, store.Completed, "run 1")
			s.ran(o, 1)
			return
		}
		f.pass(1)
		if _, err := s.work(healthy); stet.KindOf(err) != stet.KindUnknown {
			f.Errorf("%v: a take after the lease ran out: %v; want KindUnknown", o, err)
		}
		s.stands(o, healthy, store.Unknown, "")
		s.ran(o, 1)
	})
}

func chaosOfWork(f *fixture) {
	const keys, tries = 24, 5
	services := make([]*service, keys)
	for i := range services {
		services[i] = f.service()
	}
	told := make([]atomic.Bool, keys) // that it was accepted
	engines := make([]*stet.Engine, 3)
	for i := range engines {
		engines[i] = f.engineWithin(hurry, Faulty(f.store, Seeded(uint64(i), 0.4)), f.short())
	}
	race(2*keys, func(n int) {
		for try := range tries {
			i, e := n%keys, engines[(n+try)%len(engines)]
			if _, err := services[i].accepted(e); err == nil {
				told[i].Store(true)
			}
			if run, err := e.Take(f.ctx, services[i].item(e)); err == nil && !run.Replayed() {
				if try%2 == 0 {
					_ = run.Release(f.ctx, stet.Again{})
					continue
				}
				value := fmt.Sprint("run ", services[i].runs.Add(1))
				_ = run.Emit(stet.Message{To: "shipped", Body: []byte(value)})
				_ = run.Settle(f.ctx, stet.Outcome{Body: []byte(value)})
			}
		}
	})
	for _, e := range engines {
		_ = e.Close()
	}
	f.pass(1)
	healthy := f.engine(f.store, f.short())
	for _, s := range services {
		_, _ = s.work(healthy) // marks unknown what died
	}
	f.drain(healthy, services)
	completed := 0
	for _, s := range services {
		if rec, err := f.store.Read(f.ctx, s.item(healthy).ID); err == nil && rec.State == store.Completed {
			completed++
		}
	}
	if completed == 0 {
		f.Errorf("no operation of %d is completed, which proves too little", keys)
	}
	sent, emits := map[string]int(nil), 0
	if f.can.outbox != nil {
		sent, emits = f.sent(healthy, completed), 1
	}
	for i, s := range services {
		st, err := healthy.Status(f.ctx, s.op.Scope, s.item(healthy).ID)
		if err != nil {
			f.Errorf("Status: %v", err)
		}
		runs, sent := s.runs.Load(), sent[s.messageID(healthy)]
		switch state := st.Record.State; {
		case runs > 1:
			f.Errorf("operation %d ran %d times", i, runs)
		case state == store.Completed && (runs != 1 || string(st.Outcome.Body) != "run 1" || sent != emits):
			f.Errorf("operation %d is completed with %s after %d runs, and its message was sent %d times", i, brief(st.Outcome.Body), runs, sent)
		case state != store.Completed && sent != 0:
			f.Errorf("operation %d is %v, and a message was sent", i, state)
		case state == store.None && !told[i].Load(), state == store.Completed, state == store.Unknown:
		default:
			f.Errorf("operation %d, once the faults had ended, is %v; its acceptance was acknowledged: %v", i, state, told[i].Load())
		}
	}
}

// messageID is the ID of the message that work emits.
func (s *service) messageID(e *stet.Engine) string {
	return stet.DeriveKey("stet/message", s.item(e).ID.String(), "0")
}

// drain does all work that is due, a worker's way.
func (f *fixture) drain(e *stet.Engine, services []*service) {
	f.Helper()
	by := make(map[store.ID]*service)
	for _, s := range services {
		by[s.item(e).ID] = s
	}
	for range 10 {
		items, err := e.Due(f.ctx, 100, f.unit)
		if err != nil {
			f.Fatalf("Due: %v", err)
		}
		var mu sync.Mutex
		race(len(items), func(i int) {
			s := by[items[i].ID]
			if s == nil {
				f.Error("Due returned an operation that was never accepted")
				return
			}
			_, err := s.work(e)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && stet.KindOf(err) != stet.KindUnknown {
				f.Errorf("Take of due work: %v", err)
			}
		})
		f.pass(1)
	}
}

// sent relays messages, a relay's way, until there were want of them, or a relay
// would have had them long ago; and then what else there is. It counts them by
// their ID.
func (f *fixture) sent(e *stet.Engine, want int) map[string]int {
	f.Helper()
	count := make(map[string]int)
	for end, last := time.Now().Add(patience), false; !last; {
		last = len(count) >= want || time.Now().After(end)
		n, err := e.Relay(f.ctx, 1000, f.long, func(operations [][]stet.Message, told func(int, error)) error {
			for i, messages := range operations {
				for _, m := range messages {
					count[m.ID]++
				}
				told(i, nil)
			}
			return nil
		})
		if err != nil {
			f.Fatalf("Relay: %v", err)
		}
		if n == 0 && !last {
			time.Sleep(5 * time.Millisecond) // between two looks
		}
	}
	return count
}
