package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(memberEnv) != "" {
		os.Exit(be())
	}
	goleak.VerifyTestMain(rig.Main(m))
}

var ctx = context.Background()

// bench is an engine on a store in memory, in a bubble of its own time.
type bench struct {
	t      *testing.T
	store  *memory.Store
	engine *stet.Engine
	events []observe.Event
}

func inMemory(t *testing.T, o stet.Options, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, store: memory.New(memory.Options{})}
		var mu sync.Mutex
		o.SweepEvery = -1
		o.Observer = observe.Func(func(_ context.Context, ev observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			b.events = append(b.events, ev)
		})
		var err error
		if b.engine, err = stet.New(b.store, o); err != nil {
			t.Fatal(err)
		}
		defer b.engine.Close()
		f(t, b)
	})
}

func (b *bench) op(key, class string) stet.Op { return stet.Op{Scope: "shop", Key: key, Class: class} }

// unknown returns an operation with an unknown outcome.
func (b *bench) unknown(key, class string) store.ID {
	b.t.Helper()
	run, err := b.engine.Begin(ctx, b.op(key, class))
	must(b.t, err)
	must(b.t, run.MarkUnknown(ctx))
	return run.ID()
}

// lapsed returns an operation with an expired lease.
func (b *bench) lapsed(key string) store.ID {
	b.t.Helper()
	id := b.engine.ID("shop", key)
	_, err := b.store.Claim(ctx, store.ClaimRequest{ID: id, Scope: store.DigestScope("", "shop"), Owner: store.NewOwner(), Lease: time.Second})
	must(b.t, err)
	time.Sleep(2 * time.Second)
	return id
}

func (b *bench) accepted(key, class string) store.ID {
	b.t.Helper()
	st, err := b.engine.Accept(ctx, b.op(key, class), stet.Work{Name: "ship"})
	must(b.t, err)
	return st.Record.ID
}

// taken is accepted, and marked unknown by a worker.
func (b *bench) taken(key, class string) store.ID {
	b.t.Helper()
	id := b.accepted(key, class)
	run, err := b.engine.Take(ctx, stet.Item{ID: id, Class: class, Name: "ship"})
	must(b.t, err)
	must(b.t, run.MarkUnknown(ctx))
	return id
}

func (b *bench) record(id store.ID) store.Record {
	b.t.Helper()
	rec, err := b.store.Read(ctx, id)
	must(b.t, err)
	return rec
}

func (b *bench) is(id store.ID, want store.State) {
	b.t.Helper()
	if got := b.record(id).State; got != want {
		b.t.Errorf("the record is %v; want %v", got, want)
	}
}

func (b *bench) pass(o reconcile.Options) reconcile.Report {
	b.t.Helper()
	o.ErrorLog = slog.New(slog.DiscardHandler)
	r, err := reconcile.New(b.engine, o)
	must(b.t, err)
	report, err := r.Pass(ctx)
	must(b.t, err)
	return report
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// says is a verifier with one resolution.
func says(v stet.Resolution) func(context.Context, stet.Status) (stet.Resolution, error) {
	return func(context.Context, stet.Status) (stet.Resolution, error) { return v, nil }
}

var happened = stet.ItHappened(stet.Outcome{Body: []byte(`"shipped"`)})

func TestResolutionsAreStored(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		lapsed := b.lapsed("lapsed")
		did, didNot, unknown := b.unknown("did", ""), b.unknown("did not", ""), b.unknown("unknown", "")
		waits, failed := b.taken("waits", ""), b.unknown("failed", "")
		resolutions := map[store.ID]stet.Resolution{lapsed: happened, did: happened, didNot: stet.ItDidNotHappen(), waits: stet.ItDidNotHappen(),
			failed: stet.ItHappened(stet.Outcome{Failed: true, Body: []byte(`"declined"`)})}
		got := b.pass(reconcile.Options{Verify: func(_ context.Context, st stet.Status) (stet.Resolution, error) {
			return resolutions[st.Record.ID], nil
		}})
		b.is(lapsed, store.Completed)
		b.is(did, store.Completed)
		b.is(didNot, store.Retryable)
		b.is(unknown, store.Unknown)
		b.is(waits, store.Accepted)
		b.is(failed, store.Failed)
		if want := (reconcile.Report{Looked: 6, Completed: 2, Failed: 1, Again: 2, Left: 1}); got != want {
			t.Errorf("%+v; want %+v", got, want)
		}
		if items, err := b.engine.Due(ctx, 10, time.Minute); err != nil || len(items) != 1 {
			t.Error("what did not happen is not returned again", items, err)
		}
	})
}

func TestVerifierReceivesTheOperation(t *testing.T) {
	inMemory(t, stet.Options{Classes: map[string]stet.Policy{"slow": {}}}, func(t *testing.T, b *bench) {
		b.taken("Emma", "slow")
		b.pass(reconcile.Options{Verify: func(_ context.Context, st stet.Status) (stet.Resolution, error) {
			if st.Op.Scope != "shop" || st.Op.Key != "Emma" || st.Op.Class != "slow" || st.Name != "ship" || st.Record.Attempt != 1 || st.Record.Fence == 0 {
				t.Errorf("%+v", st)
			}
			return stet.CannotKnow(), nil
		}})
	})
}

func TestRunningAndSettledRecordsAreUnchanged(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		run, err := b.engine.Begin(ctx, b.op("live", ""))
		must(t, err)
		settled, err := b.engine.Begin(ctx, b.op("settled", ""))
		must(t, err)
		must(t, settled.Settle(ctx, stet.Outcome{}))
		waits := b.accepted("waits", "")
		if got := b.pass(reconcile.Options{Verify: says(stet.ItDidNotHappen())}); got != (reconcile.Report{}) {
			t.Errorf("%+v", got)
		}
		b.is(waits, store.Accepted)
		must(t, run.Settle(ctx, stet.Outcome{}))
	})
}

func TestResolutionOfAChangedRecordIsRefused(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		id := b.unknown("a", "")
		got := b.pass(reconcile.Options{Verify: func(_ context.Context, st stet.Status) (stet.Resolution, error) {
			// While the processor is asked, an operator is faster, and a retry runs.
			must(t, b.engine.Resolve(ctx, st.Record, "", stet.ItDidNotHappen()))
			run, err := b.engine.Begin(ctx, b.op("a", ""))
			must(t, err)
			must(t, run.MarkUnknown(ctx))
			return happened, nil
		}})
		b.is(id, store.Unknown)
		if got.Changed != 1 || got.Completed != 0 {
			t.Errorf("%+v", got)
		}
	})
}

func TestFailedVerifierLeavesTheRecord(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}}, func(t *testing.T, b *bench) {
		id := b.unknown("a", "")
		b.events = nil
		got := b.pass(reconcile.Options{Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
			return happened, errors.New("the processor is down")
		}})
		b.is(id, store.Unknown)
		if got.Errors != 1 || len(b.events) != 1 || b.events[0].Kind != observe.Resolved || b.events[0].Err == nil {
			t.Errorf("%+v, %+v", got, b.events)
		}
	})
}

func TestVerifyTimeoutEndsTheVerifier(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{VerifyTimeout: time.Minute}}, func(t *testing.T, b *bench) {
		id := b.unknown("a", "")
		began := time.Now()
		b.pass(reconcile.Options{Verify: func(ctx context.Context, _ stet.Status) (stet.Resolution, error) {
			<-ctx.Done()
			return stet.Resolution{}, ctx.Err()
		}})
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it had %v", took)
		}
		b.is(id, store.Unknown)
	})
}

func TestPolicyStaleResolvesUnknownRecords(t *testing.T) {
	verify := func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		byKey, byRef := st.Op.Scope == "shop" && st.Op.Key == "accepted", st.Op.Key == "" && st.Op.Ref == "order 7" && st.Op.Name == "POST /orders"
		if byKey == byRef || st.Op.Class != "verify" || st.Record.Fence == 0 || st.Record.Attempt != 1 || st.Record.ClaimedAt.IsZero() {
			return stet.Resolution{}, fmt.Errorf("asked about %+v", st)
		}
		return happened, nil
	}
	o := stet.Options{Classes: map[string]stet.Policy{
		"again": {Stale: stet.MayRunAgain()}, "fail": {Stale: stet.ItHappened(stet.Outcome{Failed: true})}, "unknown": {Stale: stet.CannotKnow()}, "verify": {Verify: verify, Stale: stet.ItHappened(stet.Outcome{Failed: true})},
	}}
	type states struct{ sync, named, accepted store.State }
	decides := func(class string, byRef bool, want states) {
		t.Run(class, func(t *testing.T) {
			inMemory(t, o, func(t *testing.T, b *bench) {
				direct, accepted := b.unknown("direct", class), b.taken("accepted", class)
				op := b.op("named", class)
				op.Name, op.Ref = "POST /orders", "order 7"
				named, err := b.engine.Begin(ctx, op)
				must(t, err)
				must(t, named.MarkUnknown(ctx))
				b.pass(reconcile.Options{ByRef: byRef})
				b.is(direct, want.sync)
				b.is(named.ID(), want.named)
				b.is(accepted, want.accepted)
				if rec := b.record(direct); want.sync == store.Failed && class == "fail" {
					_, err := b.engine.Begin(ctx, b.op("direct", class))
					if err != nil || rec.Gone {
						t.Error(err)
					}
				}
			})
		})
	}
	for _, byRef := range []bool{false, true} {
		decides("again", byRef, states{store.Retryable, store.Retryable, store.Accepted})
		decides("fail", byRef, states{store.Failed, store.Failed, store.Failed})
		decides("unknown", byRef, states{store.Unknown, store.Unknown, store.Unknown})
	}
	// A record with neither key nor reference is left unknown, whatever Policy.Stale says.
	decides("verify", true, states{store.Unknown, store.Completed, store.Completed})
	decides("verify", false, states{store.Unknown, store.Unknown, store.Completed})
}

func TestStaleFailureIsStoredAsATimeout(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}}, func(t *testing.T, b *bench) {
		b.unknown("a", "")
		b.pass(reconcile.Options{})
		_, err := stet.Do(ctx, b.engine, b.op("a", ""), func(context.Context) (int, error) { return 0, nil })
		if stet.KindOf(err) != stet.KindFailed || stet.ExecutionOf(err) != stet.MayHaveExecuted {
			t.Error(err)
		}
	})
}

func TestExpiredRunIsMarkedUnknownWithAnEvent(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		id := b.lapsed("a")
		b.events = nil
		if got := b.pass(reconcile.Options{UnknownOnly: true}); got != (reconcile.Report{}) || len(b.events) > 0 {
			t.Errorf("%+v", got)
		}
		b.pass(reconcile.Options{})
		b.is(id, store.Unknown)
		if len(b.events) != 1 || b.events[0].Kind != observe.MarkedUnknown || b.events[0].ID != id {
			t.Errorf("%+v", b.events)
		}
	})
}

func TestAcceptedForFailsOldOperationsOfStaleFailures(t *testing.T) {
	o := stet.Options{Classes: map[string]stet.Policy{"fail": {Stale: stet.ItHappened(stet.Outcome{Failed: true})}, "again": {Stale: stet.MayRunAgain()}}}
	inMemory(t, o, func(t *testing.T, b *bench) {
		fail, again := b.accepted("a", "fail"), b.accepted("b", "again")
		time.Sleep(time.Hour)
		young := b.accepted("c", "fail")
		got := b.pass(reconcile.Options{AcceptedFor: 30 * time.Minute})
		b.is(fail, store.Failed)
		b.is(again, store.Accepted)
		b.is(young, store.Accepted)
		if got.Failed != 1 || got.Left != 1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestDryRunChangesNothing(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		ids := []store.ID{b.lapsed("a"), b.unknown("b", ""), b.taken("c", "")}
		before := []store.Record{b.record(ids[0]), b.record(ids[1]), b.record(ids[2])}
		b.events = nil
		var stages []reconcile.Stage
		o := reconcile.Options{DryRun: true, Concurrency: 1, Verify: says(happened), Audit: func(_ context.Context, e reconcile.Entry) error {
			stages = append(stages, e.Stage)
			return nil
		}}
		got := b.pass(o)
		o.Verify = nil
		b.pass(o)
		for i, id := range ids {
			if now := b.record(id); now.State != before[i].State || now.Fence != before[i].Fence {
				t.Errorf("%+v became %+v", before[i], now)
			}
		}
		if got.Completed != 3 || len(b.events) != 0 || len(stages) != 6 || stages[0] != reconcile.DryRun {
			t.Errorf("%+v, %v, %v", got, b.events, stages)
		}
	})
}

func TestFailedAuditPreventsTheResolution(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		id := b.unknown("a", "")
		full := true
		var entries []reconcile.Entry
		o := reconcile.Options{Verify: says(happened), Audit: func(_ context.Context, e reconcile.Entry) error {
			if full {
				return errors.New("the disk is full")
			}
			entries = append(entries, e)
			return nil
		}}
		if got := b.pass(o); got.Errors != 1 {
			t.Errorf("%+v", got)
		}
		b.is(id, store.Unknown)
		full = false
		b.pass(o)
		b.is(id, store.Completed)
		if len(entries) != 2 || entries[0].Stage != reconcile.Begun || entries[1].Stage != reconcile.Done || entries[1].Resolution != store.Completed {
			t.Errorf("%+v", entries)
		}
	})
}

func TestRateAndConcurrencyAreBounded(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		for i := range 50 {
			b.unknown(strconv.Itoa(i), "")
		}
		var at, most atomic.Int64
		began := time.Now()
		b.pass(reconcile.Options{Rate: 10, Concurrency: 3, Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
			most.Store(max(most.Load(), at.Add(1)))
			time.Sleep(time.Second)
			at.Add(-1)
			return stet.CannotKnow(), nil
		}})
		if took := time.Since(began); most.Load() != 3 || took < 16*time.Second {
			t.Errorf("%d at a time, in %v", most.Load(), took)
		}
		began = time.Now()
		b.pass(reconcile.Options{Rate: 10, Concurrency: 50})
		if took := time.Since(began); took < 4900*time.Millisecond || took > 6*time.Second {
			t.Errorf("50 at 10 a second took %v", took)
		}
	})
}

func TestPassReadsOnlySelectedRecords(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		other, err := b.engine.Begin(ctx, stet.Op{Scope: "bank", Key: "a"})
		must(t, err)
		must(t, other.MarkUnknown(ctx))
		b.unknown("old", "")
		time.Sleep(time.Hour)
		b.unknown("young", "")
		shopOnly := func(st stet.Status) bool {
			if st.Record.ID == other.ID() {
				t.Error("the record of another scope was read")
			}
			return true
		}
		for name, c := range map[string]struct {
			o    reconcile.Options
			want int
		}{
			"all":          {reconcile.Options{}, 3},
			"scope":        {reconcile.Options{Scope: store.DigestScope("", "shop"), Select: shopOnly}, 2},
			"older":        {reconcile.Options{OlderThan: time.Minute}, 2},
			"unknown only": {reconcile.Options{UnknownOnly: true}, 3},
			"select":       {reconcile.Options{Select: func(st stet.Status) bool { return st.Record.ID == other.ID() }}, 1},
		} {
			if got := b.pass(c.o); got.Left != c.want {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})
}

func TestPassEndsWithItsContext(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}}, func(t *testing.T, b *bench) {
		ids := []store.ID{b.unknown("a", ""), b.unknown("b", "")}
		ctx, cancel := context.WithCancel(ctx)
		r, err := reconcile.New(b.engine, reconcile.Options{Concurrency: 1, Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
			cancel()
			return stet.CannotKnow(), nil
		}})
		must(t, err)
		if _, err := r.Pass(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, id := range ids {
			b.is(id, store.Unknown) // a resolution that was cut short is none
		}
		must(t, r.Run(ctx))
	})
}

func TestRunRepeatsPasses(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		id := b.unknown("a", "")
		ctx, cancel := context.WithCancel(ctx)
		asked := 0
		r, err := reconcile.New(b.engine, reconcile.Options{ErrorLog: slog.New(slog.DiscardHandler), Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
			if asked++; asked < 5 {
				return stet.CannotKnow(), nil
			}
			return happened, nil
		}})
		must(t, err)
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		b.is(id, store.Completed)
		cancel()
		must(t, <-done)
	})
}

func TestWrongOptionsAreRefused(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		_, noEngine := reconcile.New(nil, reconcile.Options{})
		_, negative := reconcile.New(b.engine, reconcile.Options{OlderThan: -1})
		blind, err := stet.New(struct{ store.Store }{b.store}, stet.Options{SweepEvery: -1})
		must(t, err)
		defer blind.Close()
		_, noBrowser := reconcile.New(blind, reconcile.Options{})
		for name, err := range map[string]error{"no engine": noEngine, "negative": negative, "no browser": noBrowser} {
			if stet.KindOf(err) != stet.KindInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestRecordOfAnUnknownClassIsLeftUnchanged(t *testing.T) {
	inMemory(t, stet.Options{Classes: map[string]stet.Policy{"old": {}}}, func(t *testing.T, b *bench) {
		id := b.unknown("a", "old")
		next, err := stet.New(b.store, stet.Options{SweepEvery: -1})
		must(t, err)
		defer next.Close()
		r, err := reconcile.New(next, reconcile.Options{})
		must(t, err)
		if got, err := r.Pass(ctx); err != nil || got.Errors != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		b.is(id, store.Unknown)
	})
}
