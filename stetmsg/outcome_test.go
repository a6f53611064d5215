package stetmsg_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

// passing returns a consumer whose handler passes messages on.
func (b *bench) passing(h func(context.Context, *stet.Lease, order) (stet.Outcome, error), change ...func(*stetmsg.Options[order])) *stetmsg.Consumer[order] {
	b.t.Helper()
	o := options()
	for _, f := range change {
		f(&o)
	}
	c, err := stetmsg.NewOutcome(b.engine, o, h)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

var created = stet.Outcome{Adapter: store.AdapterHTTP, Status: 201, Type: "text/plain", Body: []byte("made")}

func TestOutcomeIsStoredUnchanged(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	refused := stet.Outcome{Failed: true, Adapter: store.AdapterHTTP, Status: 422, Body: []byte("no such article")}
	c := b.passing(func(ctx context.Context, run *stet.Lease, m order) (stet.Outcome, error) {
		switch {
		case run.Run != stet.FromContext(ctx):
			t.Error("the run is another one than that of the context")
		case m.ID == "refused":
			return refused, nil
		case m.ID == "down":
			return refused, stet.Retryable(errors.New("down"))
		}
		return created, nil
	}, func(o *stetmsg.Options[order]) { o.MaxAttempts = 1 })
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Ack, stetmsg.Handled)
	if d := c.Decide(ctx, order{ID: "1"}, 2); d.Reason != stetmsg.Replayed || d.Outcome.Status != 201 || string(d.Outcome.Body) != "made" {
		t.Errorf("replayed: %+v", d)
	}
	for id, reason := range map[string]stetmsg.Reason{"refused": stetmsg.Failed, "down": stetmsg.Exhausted} {
		d := c.Decide(ctx, order{ID: id}, 1)
		wants(t, d, stetmsg.DeadLetter, reason)
		if d.Outcome.Status != 422 || d.Err == nil {
			t.Errorf("%s: %+v", id, d)
		}
	}
}

func TestAgainSetsTheWait(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	c := b.passing(func(context.Context, *stet.Lease, order) (stet.Outcome, error) {
		return stet.Outcome{}, stetmsg.Again(errors.New("busy"), func(backoff time.Duration) stet.Again { return stet.Again{After: backoff + time.Minute} })
	}, func(o *stetmsg.Options[order]) { o.MaxAttempts = 2 })
	d := c.Decide(ctx, order{ID: "1"}, 1)
	wants(t, d, stetmsg.Retry, stetmsg.NoEffect)
	if d.After != 61*time.Second {
		t.Errorf("after %v", d.After)
	}
	wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.DeadLetter, stetmsg.Exhausted)
	if stetmsg.Again(nil, nil) != nil {
		t.Error("no error has become one")
	}
}

// gate is what a handler needs, which is down at times.
type gate struct{ down atomic.Bool }

func (g *gate) await(ctx context.Context) error {
	for g.down.Load() {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func uncounted(err error) error {
	return stetmsg.Again(err, func(time.Duration) stet.Again { return stet.Again{Uncounted: true} })
}

// A service that is down for an hour must not use up the attempts of a message, nor have it
// go round in the broker.
func TestMessageIsKeptWhileItsServiceIsDown(t *testing.T) {
	for name, p := range map[string]stet.Policy{"remembered": {}, "forgotten": {ForgetReleased: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := inMemory(t, p)
				var g gate
				runs := 0
				c := b.passing(func(context.Context, *stet.Lease, order) (stet.Outcome, error) {
					switch runs++; {
					case runs == 1:
						return stet.Outcome{}, stet.Retryable(errors.New("the first attempt counts"))
					case runs < 40:
						g.down.Store(true)
						time.AfterFunc(2*time.Minute, func() { g.down.Store(false) })
						return stet.Outcome{}, uncounted(errors.New("connection refused"))
					}
					return created, nil
				}, func(o *stetmsg.Options[order]) { o.MaxAttempts, o.Await = 2, g.await })
				wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.NoEffect)
				began := time.Now()
				wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.Ack, stetmsg.Handled)
				if runs != 40 || time.Since(began) < time.Hour {
					t.Errorf("%d runs in %v", runs, time.Since(began))
				}
			})
		})
	}
}

func TestUncountedAttemptsDoNotReachTheLimit(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	ready := false
	c := b.passing(func(context.Context, *stet.Lease, order) (stet.Outcome, error) {
		if !ready {
			return stet.Outcome{}, uncounted(errors.New("connection refused"))
		}
		return stet.Outcome{}, stet.Retryable(errors.New("not now"))
	}, func(o *stetmsg.Options[order]) { o.MaxAttempts = 3 })
	for range 12 {
		wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.NotReady)
	}
	ready = true
	for range 2 {
		wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.NoEffect)
	}
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.DeadLetter, stetmsg.Exhausted)
}

func TestWaitingMessageIsReleasedAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{})
		var g gate
		g.down.Store(true)
		c := b.passing(func(context.Context, *stet.Lease, order) (stet.Outcome, error) { panic("it is not ready") },
			func(o *stetmsg.Options[order]) { o.Await = g.await })
		within, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		wants(t, c.Decide(within, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.Stopped)
		if s := b.state("1"); s != store.None {
			t.Errorf("the record is %v", s)
		}
	})
}

// An unknown message does not become a dead letter while its verifier is unavailable.
func TestUnknownMessageIsKeptWhileItsVerifierIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		asked := 0
		b := inMemory(t, stet.Policy{Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
			if asked++; asked < 4 {
				g.down.Store(true)
				time.AfterFunc(10*time.Minute, func() { g.down.Store(false) })
				return stet.CannotKnow(), errors.New("connection refused")
			}
			return stet.ItHappened(created), nil
		}})
		c := b.passing(func(ctx context.Context, _ *stet.Lease, _ order) (stet.Outcome, error) {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return stet.Outcome{}, errors.New("it broke off")
		}, func(o *stetmsg.Options[order]) { o.MaxAttempts, o.Await = 2, g.await })
		wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.Unknown)
		wants(t, c.Decide(ctx, order{ID: "1"}, 7), stetmsg.Ack, stetmsg.Replayed)
		if asked != 4 {
			t.Errorf("the verifier was asked %d times", asked)
		}
	})
}
