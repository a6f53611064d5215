package stetmsg_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestLongHandlerRenewsItsLeaseAndExtendsItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{Lease: 10 * time.Second})
		c := b.consumer(func(ctx context.Context, _ order) ([]byte, error) {
			time.Sleep(time.Minute)
			return nil, ctx.Err()
		})
		d := &delivery{every: 7 * time.Second}
		got, _ := c.Handle(ctx, order{ID: "1"}, d)
		wants(t, got, stetmsg.Ack, stetmsg.Handled)
		if len(d.calls) != 9 || strings.Count(strings.Join(d.calls, " "), "extend") != 8 {
			t.Fatalf("the calls of the broker are %v", d.calls)
		}
	})
}

func TestConcurrencyLimitsHandlersAndOthersAreExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{})
		var at, most atomic.Int64
		c := b.consumer(func(context.Context, order) ([]byte, error) {
			most.Store(max(most.Load(), at.Add(1)))
			time.Sleep(10 * time.Second)
			at.Add(-1)
			return nil, nil
		}, func(o *stetmsg.Options[order]) { o.Concurrency = 2 })
		var wg sync.WaitGroup
		ds := make([]*delivery, 6)
		for i := range ds {
			ds[i] = &delivery{every: 4 * time.Second}
			wg.Go(func() { _, _ = c.Handle(ctx, order{ID: string(rune('a' + i))}, ds[i]) })
		}
		wg.Wait()
		extended := 0
		for _, d := range ds {
			extended += len(d.calls) - 1
		}
		if most.Load() != 2 || extended != 2*2+2*5+2*7-4 && extended < 20 {
			t.Fatalf("%d at a time, extended %d times", most.Load(), extended)
		}
	})
}

func TestShutdownFinishesRunsAndReleasesOtherMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{})
		c := b.consumer(func(ctx context.Context, _ order) ([]byte, error) {
			time.Sleep(10 * time.Second)
			return nil, ctx.Err()
		}, func(o *stetmsg.Options[order]) { o.Concurrency = 1 })
		ctx, stop := context.WithCancel(ctx)
		begun, waiting := &delivery{}, &delivery{}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.Handle(ctx, order{ID: "begun"}, begun) })
		synctest.Wait()
		wg.Go(func() { _, _ = c.Handle(ctx, order{ID: "waiting"}, waiting) })
		synctest.Wait()
		stop()
		wg.Wait()
		if begun.calls[0] != "ack" || waiting.calls[0] != "retry" || waiting.after != 0 {
			t.Fatal(begun.calls, waiting.calls, waiting.after)
		}
		if b.state("waiting") != store.None {
			t.Error("a released message has a record")
		}
		c = b.consumer(func(context.Context, order) ([]byte, error) { panic("begun after the end") })
		wants(t, c.Decide(ctx, order{ID: "late"}, 1), stetmsg.Retry, stetmsg.Stopped)
	})
}

func TestPartsOfAMessageAreSeparateOperations(t *testing.T) {
	runs := map[string]int{}
	var seen []stetmsg.Decision
	c := inMemory(t, stet.Policy{}).consumer(func(_ context.Context, m order) ([]byte, error) {
		if runs[m.ID]++; m.ID == "later" && runs[m.ID] == 1 {
			return nil, stet.Retryable(errors.New("busy"))
		}
		if m.ID == "bad" {
			return nil, errors.New("no such book")
		}
		return nil, nil
	}, func(o *stetmsg.Options[order]) {
		o.Observe = func(_ context.Context, d stetmsg.Decision) { seen = append(seen, d) }
		o.Split = func(m order) (parts []order, err error) {
			if m.Body == "" {
				return nil, errors.New("empty")
			}
			for _, id := range strings.Fields(m.Body) {
				parts = append(parts, order{ID: id})
			}
			return parts, nil
		}
	})
	wants(t, c.Decide(ctx, order{Body: "good later bad"}, 1), stetmsg.Retry, stetmsg.NoEffect)
	wants(t, c.Decide(ctx, order{Body: "good later bad"}, 2), stetmsg.DeadLetter, stetmsg.Failed)
	wants(t, c.Decide(ctx, order{Body: "good later"}, 2), stetmsg.Ack, stetmsg.Replayed)
	wants(t, c.Decide(ctx, order{}, 1), stetmsg.DeadLetter, stetmsg.Invalid)
	if runs["good"] != 1 || runs["later"] != 2 || runs["bad"] != 1 || len(seen) != 3+3+2+1 {
		t.Fatal(runs, len(seen))
	}
}

func TestFailedBrokerCallIsAnError(t *testing.T) {
	c := inMemory(t, stet.Policy{}).consumer(func(context.Context, order) ([]byte, error) { return nil, nil })
	gone := errors.New("gone")
	if _, err := c.Handle(ctx, order{ID: "1"}, deaf{&delivery{}, gone}); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	got, err := c.Handle(ctx, order{ID: "1"}, &delivery{})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, got, stetmsg.Ack, stetmsg.Replayed)
}

type deaf struct {
	*delivery
	err error
}

func (d deaf) Ack(context.Context) error { return d.err }

func TestWrongOptionsAreErrors(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	s := onSQLite(t)
	h := func(context.Context, order) ([]byte, error) { return nil, nil }
	_, err1 := stetmsg.New(nil, options(), h)
	_, err2 := stetmsg.New(b.engine, stetmsg.Options[order]{}, h)
	_, err3 := stetmsg.New(b.engine, options(), nil)
	_, err4 := stetmsg.New(b.engine, stetmsg.Options[order]{Operation: operation, Concurrency: -1}, h)
	_, err5 := stetmsg.NewTx[*sql.Tx](nil, options(), insert)
	other := onSQLite(t)
	_, err6 := stet.WithTx(newBench(t, other, stet.Policy{}).engine, s)
	_, err7 := stet.WithTx(b.engine, s)
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%d: %v", i+1, err)
		}
	}
	c, err := stetmsg.New(b.engine, options(), h)
	if err != nil || c.Concurrency() != stetmsg.DefaultConcurrency {
		t.Fatal(err)
	}
}

func TestTextOfADeadLetterFitsAHeader(t *testing.T) {
	d := stetmsg.Decision{Err: errors.New("a\r\nSet-Cookie: é\x00" + strings.Repeat("x", 5000))}
	text := d.Text()
	if len(text) != 1<<10 || strings.ContainsAny(text, "\r\n\x00é") {
		t.Fatalf("%d bytes: %q", len(text), text[:30])
	}
	if (stetmsg.Decision{}).Text() != "" {
		t.Error("no error has a text")
	}
}

// taciturn is a delivery whose broker does not answer the first time.
type taciturn struct {
	delivery
	asked int
}

func (d *taciturn) Extend(ctx context.Context) error {
	if d.asked++; d.asked > 1 {
		return d.delivery.Extend(ctx)
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestMessageIsExtendedAfterAFailedExtension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{Lease: 10 * time.Second})
		c := b.consumer(func(context.Context, order) ([]byte, error) {
			time.Sleep(time.Minute)
			return nil, nil
		})
		d := &taciturn{delivery: delivery{every: 7 * time.Second}}
		got, _ := c.Handle(ctx, order{ID: "1"}, d)
		wants(t, got, stetmsg.Ack, stetmsg.Handled)
		if extended := strings.Count(strings.Join(d.calls, " "), "extend"); extended < 6 {
			t.Fatalf("extended %d times", extended)
		}
	})
}

func TestMessageOfAHandlerWithGoexitIsDeliveredAgain(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	c := b.consumer(func(context.Context, order) ([]byte, error) {
		runtime.Goexit()
		return nil, nil
	})
	d := &delivery{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Handle(ctx, order{ID: "1"}, d)
	}()
	<-done
	if len(d.calls) != 1 || d.calls[0] != "retry" || d.after <= 0 {
		t.Fatalf("the calls of the broker are %v, after %v", d.calls, d.after)
	}
	got, _ := c.Handle(ctx, order{ID: "1"}, d)
	wants(t, got, stetmsg.DeadLetter, stetmsg.Failed)
}

func TestConcurrencyOfOne_HandlesInTheOrderReceived(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	o := options()
	o.Concurrency = 1
	var got []string
	c, err := stetmsg.New(engine, o, func(_ context.Context, m order) ([]byte, error) {
		got = append(got, m.ID)
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pool := receiver.NewPool(2, 1)
	for i := range 2000 {
		pool.Reserve(t.Context(), 1)
		pool.Run(func() { _, _ = c.Handle(t.Context(), order{ID: strconv.Itoa(i), Body: "x"}, mute{}) })
	}
	pool.Await(t.Context(), 2) // Wait would run the waiting messages at once
	pool.Wait()
	for i, id := range got {
		if id != strconv.Itoa(i) {
			t.Fatalf("message %s came as number %d", id, i)
		}
	}
	if len(got) != 2000 {
		t.Fatalf("%d messages", len(got))
	}
}
