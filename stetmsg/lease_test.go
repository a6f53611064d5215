package stetmsg_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

var ctx = context.Background()

func TestOutcomeIsDurableBeforeTheAcknowledgement(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	c := b.consumer(func(context.Context, order) ([]byte, error) { return []byte("done"), nil })
	d := &delivery{}
	d.on = func() {
		if s := b.state("1"); s != store.Completed {
			t.Errorf("the record is %v at the call of the broker", s)
		}
	}
	got, err := c.Handle(ctx, order{ID: "1"}, d)
	if err != nil || len(d.calls) != 1 || d.calls[0] != "ack" {
		t.Fatal(d.calls, err)
	}
	wants(t, got, stetmsg.Ack, stetmsg.Handled)
}

func TestDuplicateIsAcknowledgedWithoutRunning(t *testing.T) {
	runs := 0
	c := inMemory(t, stet.Policy{}).consumer(func(context.Context, order) ([]byte, error) {
		runs++
		return []byte("the result"), nil
	})
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Ack, stetmsg.Handled)
	for range 4 {
		d := c.Decide(ctx, order{ID: "1"}, 1)
		wants(t, d, stetmsg.Ack, stetmsg.Replayed)
		if string(d.Outcome.Body) != "the result" {
			t.Fatalf("the stored result is %q", d.Outcome.Body)
		}
	}
	if runs != 1 {
		t.Fatalf("%d runs", runs)
	}
}

func TestRunningElsewhereIsNeverAcknowledged(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	run, err := b.engine.Begin(ctx, stet.Op{Scope: "orders", Key: "1", Fingerprint: stet.NewFingerprint(nil)})
	if err != nil {
		t.Fatal(err)
	}
	c := b.consumer(func(context.Context, order) ([]byte, error) { panic("a second run") })
	d := &delivery{}
	got, _ := c.Handle(ctx, order{ID: "1"}, d)
	wants(t, got, stetmsg.Retry, stetmsg.InFlight)
	if d.calls[0] != "retry" || d.after < time.Second {
		t.Fatalf("%v after %v", d.calls, d.after)
	}
	if err := run.Settle(ctx, stet.Outcome{}); err != nil {
		t.Fatal(err)
	}
	wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.Ack, stetmsg.Replayed)
}

// An empty result is that of a run that died, by Policy.Stale.
func TestErrorWithoutTextIsAFailure(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	c := b.consumer(func(context.Context, order) ([]byte, error) { return nil, errors.New("") })
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.DeadLetter, stetmsg.Failed)
	if st, err := b.engine.Lookup(ctx, b.engine.ID("orders", "1")); err != nil || !st.Outcome.Failed || st.Outcome.Reason != 0 {
		t.Fatalf("%+v, %v", st.Outcome, err)
	}
}

func TestRetryableHandlerRunsUntilMaxAttempts(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	runs := 0
	c := b.consumer(func(ctx context.Context, m order) ([]byte, error) {
		if runs++; m.ID == "declared" {
			stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
			return nil, nil
		}
		return nil, stet.Retryable(errors.New("the warehouse is closed"))
	}, func(o *stetmsg.Options[order]) { o.MaxAttempts = 3 })
	for _, id := range []string{"wrapped", "declared"} {
		runs = 0
		for n := 1; n <= 2; n++ {
			d := c.Decide(ctx, order{ID: id}, n)
			wants(t, d, stetmsg.Retry, stetmsg.NoEffect)
			if d.After != time.Duration(n)*time.Second || d.Attempts != n {
				t.Fatalf("after %v, attempt %d", d.After, d.Attempts)
			}
			if s := b.state(id); s != store.Retryable {
				t.Fatalf("the record is %v", s)
			}
		}
		wants(t, c.Decide(ctx, order{ID: id}, 3), stetmsg.DeadLetter, stetmsg.Exhausted)
		if s := b.state(id); s != store.Failed || runs != 3 {
			t.Fatalf("the record is %v after %d runs", s, runs)
		}
	}
}

func TestMessageOfAHandlerThatFailsOnceIsNotLost(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	failed := false
	c := b.consumer(func(context.Context, order) ([]byte, error) {
		if !failed {
			failed = true
			return nil, errors.New("timeout")
		}
		return []byte("ok"), nil
	}, func(o *stetmsg.Options[order]) { o.Retryable = func(error) bool { return true } }) // the handler is idempotent itself
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.NoEffect)
	wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.Ack, stetmsg.Handled)
}

// Options.Retryable says that doing it twice has one effect, of errors that are marked, too:
// without it the run becomes unknown.
func TestRetryableOptionRunsAmbiguousErrorsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		retryable func(error) bool
		want      store.State
	}{
		"asked":     {func(error) bool { return true }, store.Retryable},
		"not asked": {nil, store.Unknown},
	} {
		b := inMemory(t, stet.Policy{})
		consumer := b.consumer(func(ctx context.Context, _ order) ([]byte, error) {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return nil, stet.Retryable(errors.New("timeout"))
		}, func(o *stetmsg.Options[order]) { o.Retryable = c.retryable })
		d := consumer.Decide(ctx, order{ID: "1"}, 1)
		if got := b.state("1"); got != c.want {
			t.Errorf("%s: the record is %v after %v; want %v", name, got, d.Action, c.want)
		}
	}
}

// die leaves a claim behind whose owner is gone.
func die(t *testing.T, b *bench, key string) {
	t.Helper()
	rec, err := b.store.Claim(ctx, store.ClaimRequest{ID: b.engine.ID("orders", key), Scope: store.DigestScope("", "orders"),
		Fingerprint: stet.NewFingerprint(nil), Owner: store.NewOwner(), Lease: time.Second})
	if err != nil || rec.State != store.Running {
		t.Fatal(rec, err)
	}
	time.Sleep(2 * time.Second) // of a bubble
}

func TestUnknownIsVerifiedOrDeadLettered(t *testing.T) {
	never := func(context.Context, order) ([]byte, error) { panic("run again") }
	for name, c := range map[string]struct {
		verify func(context.Context, stet.Status) (stet.Resolution, error)
		stale  stet.Resolution
		first  stetmsg.Action
		reason stetmsg.Reason
		last   stetmsg.Action // on the last delivery
		state  store.State
	}{
		"no verifier": {nil, stet.Resolution{}, stetmsg.DeadLetter, stetmsg.Unknown, stetmsg.DeadLetter, store.Unknown},
		"it happened": {func(context.Context, stet.Status) (stet.Resolution, error) {
			return stet.ItHappened(stet.Outcome{}), nil
		}, stet.Resolution{}, stetmsg.Ack, stetmsg.Replayed, stetmsg.Ack, store.Completed},
		"unknown": {func(context.Context, stet.Status) (stet.Resolution, error) { return stet.CannotKnow(), nil },
			stet.Resolution{}, stetmsg.Retry, stetmsg.Unknown, stetmsg.DeadLetter, store.Unknown},
		"the verifier is down": {func(context.Context, stet.Status) (stet.Resolution, error) {
			return stet.Resolution{}, errors.New("down")
		}, stet.Resolution{}, stetmsg.Retry, stetmsg.Unknown, stetmsg.DeadLetter, store.Unknown},
		"failed when stale": {nil, stet.ItHappened(stet.Outcome{Failed: true}), stetmsg.DeadLetter, stetmsg.Failed, stetmsg.DeadLetter, store.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := inMemory(t, stet.Policy{Verify: c.verify, Stale: c.stale})
				die(t, b, "1")
				consumer := b.consumer(never)
				wants(t, consumer.Decide(ctx, order{ID: "1"}, 1), c.first, c.reason)
				if d := consumer.Decide(ctx, order{ID: "1"}, stetmsg.DefaultMaxAttempts); d.Action != c.last {
					t.Fatalf("at last: %v, %v", d.Action, d.Err)
				}
				if s := b.state("1"); s != c.state {
					t.Fatalf("the record is %v", s)
				}
			})
		})
	}
}

func TestDeclaredMayHaveExecutedIsUnknown(t *testing.T) {
	for _, verified := range []bool{false, true} {
		p := stet.Policy{}
		if verified {
			p.Verify = func(context.Context, stet.Status) (stet.Resolution, error) {
				return stet.ItHappened(stet.Outcome{}), nil
			}
		}
		b := inMemory(t, p)
		c := b.consumer(func(ctx context.Context, _ order) ([]byte, error) {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return nil, errors.New("the processor did not answer")
		})
		d := c.Decide(ctx, order{ID: "1"}, 1)
		if s := b.state("1"); s != store.Unknown {
			t.Fatalf("the record is %v", s)
		}
		if verified {
			wants(t, d, stetmsg.Retry, stetmsg.Unknown)
			wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.Ack, stetmsg.Replayed)
			continue
		}
		wants(t, d, stetmsg.DeadLetter, stetmsg.Unknown)
	}
}

func TestHandlerThatKillsItsProcessIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{Stale: stet.MayRunAgain()})
		die(t, b, "1")
		c := b.consumer(func(context.Context, order) ([]byte, error) { panic("run again") },
			func(o *stetmsg.Options[order]) { o.MaxAttempts = 1 })
		wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.DeadLetter, stetmsg.Exhausted)
		if s := b.state("1"); s != store.Failed {
			t.Fatalf("the record is %v", s)
		}
	})
}

func TestOtherContentUnderTheSameKeyIsNotExecuted(t *testing.T) {
	runs := 0
	c := inMemory(t, stet.Policy{}).consumer(func(context.Context, order) ([]byte, error) {
		runs++
		return nil, nil
	})
	wants(t, c.Decide(ctx, order{ID: "1", Body: "a"}, 1), stetmsg.Ack, stetmsg.Handled)
	wants(t, c.Decide(ctx, order{ID: "1", Body: "b"}, 1), stetmsg.DeadLetter, stetmsg.Mismatch)
	for _, id := range []string{"", strings.Repeat("k", store.MaxKey+1)} {
		wants(t, c.Decide(ctx, order{ID: id}, 1), stetmsg.DeadLetter, stetmsg.Invalid)
	}
	if runs != 1 {
		t.Fatalf("%d runs", runs)
	}
}

func TestDiscardedResultIsAcknowledgedOrDeadLettered(t *testing.T) {
	c := inMemory(t, stet.Policy{MaxResult: 1}).consumer(func(_ context.Context, m order) ([]byte, error) {
		if m.ID == "fails" {
			return nil, errors.New("a text that is too large to be kept")
		}
		return []byte("too large"), nil
	})
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Ack, stetmsg.Handled)
	d := c.Decide(ctx, order{ID: "1"}, 2)
	wants(t, d, stetmsg.Ack, stetmsg.Replayed)
	if !d.Outcome.Gone {
		t.Error("the outcome is not said to be gone")
	}
	wants(t, c.Decide(ctx, order{ID: "fails"}, 1), stetmsg.DeadLetter, stetmsg.Failed)
	wants(t, c.Decide(ctx, order{ID: "fails"}, 2), stetmsg.DeadLetter, stetmsg.Failed)
}

// hurt is a store that has one record, and cannot read it.
type hurt struct{ *memory.Store }

func (hurt) Claim(context.Context, store.ClaimRequest) (store.Record, error) {
	return store.Record{}, store.ErrDamaged
}

func (hurt) Read(context.Context, store.ID) (store.Record, error) {
	return store.Record{}, store.ErrDamaged
}

func (hurt) RunTx(context.Context, store.ClaimRequest, store.Retention,
	func(context.Context, bool, store.Record) (store.Settlement, error)) (store.Record, error) {
	return store.Record{}, store.ErrDamaged
}

func (hurt) SettleTx(context.Context, bool, store.Claim, store.Settlement, store.Retention) error {
	return store.ErrDamaged
}

// It may never become readable: a message that stays in flight until then delays the
// others.
func TestMessageWithAnUnreadableRecordIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hurt{memory.New(memory.Options{})}
		b := newBench(t, store, stet.Policy{})
		leased := b.consumer(func(context.Context, order) ([]byte, error) { return nil, errors.New("it ran") })
		inTx, err := stetmsg.NewTx(stettest.TxEngine(b.engine, store), options(), func(context.Context, bool, order) ([]byte, error) { return nil, errors.New("it ran") })
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*stetmsg.Consumer[order]{leased, inTx} {
			for n := 1; n < stetmsg.DefaultMaxAttempts; n++ {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				d := c.Decide(ctx, order{ID: "1"}, n)
				cancel()
				wants(t, d, stetmsg.Retry, stetmsg.Unknown)
				if d.After != time.Duration(n)*time.Second || stet.KindOf(d.Err) != stet.KindDamaged {
					t.Fatalf("delivery %d comes again after %v: %v", n, d.After, d.Err)
				}
			}
			for n := range 2 {
				wants(t, c.Decide(ctx, order{ID: "1"}, stetmsg.DefaultMaxAttempts+n), stetmsg.DeadLetter, stetmsg.Unknown)
			}
		}
	})
}

func TestMessageIsKeptWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		b := newBench(t, storetest.Faulty(memory.New(memory.Options{}), func(storetest.Call) storetest.Fault {
			if down.Load() {
				return storetest.FailBefore
			}
			return storetest.NoFault
		}), stet.Policy{})
		c := b.consumer(func(context.Context, order) ([]byte, error) { return nil, nil })
		d := &delivery{every: time.Minute}
		done := make(chan stetmsg.Decision)
		go func() {
			got, _ := c.Handle(ctx, order{ID: "1"}, d)
			done <- got
		}()
		time.Sleep(time.Hour)
		down.Store(false)
		wants(t, <-done, stetmsg.Ack, stetmsg.Handled)
		if len(d.calls) < 50 || d.calls[0] != "extend" || d.calls[len(d.calls)-1] != "ack" {
			t.Fatalf("the calls of the broker are %v", d.calls)
		}

		down.Store(true)
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			got, _ := c.Handle(ctx, order{ID: "2"}, &delivery{})
			done <- got
		}()
		time.Sleep(time.Minute)
		cancel()
		wants(t, <-done, stetmsg.Retry, stetmsg.Stopped)
	})
}

func TestUnsettledRunIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, storetest.Faulty(memory.New(memory.Options{}), func(c storetest.Call) storetest.Fault {
			if c.Method == "Settle" {
				return storetest.FailBefore
			}
			return storetest.NoFault
		}), stet.Policy{})
		c := b.consumer(func(context.Context, order) ([]byte, error) { return nil, nil })
		d := &delivery{}
		got, _ := c.Handle(ctx, order{ID: "1"}, d)
		wants(t, got, stetmsg.Retry, stetmsg.Unsettled)
		if len(d.calls) != 1 || d.calls[0] != "retry" {
			t.Fatalf("the calls of the broker are %v; want one retry", d.calls)
		}
	})
}

func TestUnsettledExhaustionIsNoDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		b := newBench(t, storetest.Faulty(memory.New(memory.Options{}), func(c storetest.Call) storetest.Fault {
			if down && c.Method == "Settle" {
				return storetest.FailBefore
			}
			return storetest.NoFault
		}), stet.Policy{Stale: stet.MayRunAgain()})
		die(t, b, "1")
		c := b.consumer(func(context.Context, order) ([]byte, error) { panic("run again") },
			func(o *stetmsg.Options[order]) { o.MaxAttempts = 1 })
		down = true
		wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.Retry, stetmsg.Unsettled)
	})
}

// The record of a message that had no effect counts its attempts, so it keeps the
// fingerprint, too. A producer whose body changes each time uses Identity.WithFingerprint.
func TestMessageWithoutEffectKeepsItsFingerprint(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	fails := true
	c := b.consumer(func(context.Context, order) ([]byte, error) {
		if fails {
			return nil, stet.Retryable(errors.New("busy"))
		}
		return nil, nil
	})
	wants(t, c.Decide(ctx, order{ID: "1", Body: "sent at 1"}, 1), stetmsg.Retry, stetmsg.NoEffect)
	fails = false
	wants(t, c.Decide(ctx, order{ID: "1", Body: "sent at 2"}, 1), stetmsg.DeadLetter, stetmsg.Mismatch)
	wants(t, c.Decide(ctx, order{ID: "1", Body: "sent at 1"}, 2), stetmsg.Ack, stetmsg.Handled)
}
