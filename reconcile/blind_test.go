package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
)

func TestRecordWithoutAKeyIsCountedAsBlind(t *testing.T) {
	asked := 0
	verify := func(context.Context, stet.Status) (stet.Resolution, error) { asked++; return happened, nil }
	inMemory(t, stet.Options{Policy: stet.Policy{Verify: verify, Stale: stet.MayRunAgain()}}, func(t *testing.T, b *bench) {
		id := b.parked("k", "")
		if got := b.pass(reconcile.Options{}); got != (reconcile.Report{Looked: 1, Blind: 1}) || asked != 0 {
			t.Errorf("%+v, asked %d times; want it left, and counted", got, asked)
		}
		b.is(id, store.Unknown)
	})
}

func TestPanicLeavesTheRecordAndIsReported(t *testing.T) {
	boom := func() { panic("boom") }
	for name, o := range map[string]reconcile.Options{
		"Verify": {Verify: func(context.Context, stet.Status) (stet.Resolution, error) { boom(); return stet.CannotKnow(), nil }},
		"Select": {Select: func(stet.Status) bool { boom(); return true }},
		"Class":  {Class: func(store.Record) string { boom(); return "" }},
		"Audit":  {Audit: func(context.Context, reconcile.Entry) error { boom(); return nil }},
	} {
		inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}, func(t *testing.T, b *bench) {
			id := b.parked("k", "")
			if got := b.pass(o); got != (reconcile.Report{Looked: 1, Errors: 1}) {
				t.Errorf("%s panics: %+v; want an error", name, got)
			}
			b.is(id, store.Unknown)
		})
	}
}

func TestEndOfAnExpiredRunKeepsLabelAndAttempt(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{Outside: true}}, func(t *testing.T, b *bench) {
		req := store.ClaimRequest{ID: b.engine.ID("shop", "k"), Scope: store.DigestScope("", "shop"), Owner: store.NewOwner(), Lease: time.Minute,
			Outside: true, Label: store.Label{Name: "POST /payments", Ref: "order 7"}}
		_, err := b.store.Claim(ctx, req)
		must(t, err)
		time.Sleep(2 * time.Minute)
		b.pass(reconcile.Options{})
		if rec := b.record(req.ID); rec.State != store.Retryable || rec.Attempt != 1 || rec.Label != req.Label || rec.Owner != req.Owner {
			t.Errorf("after a pass: %v, attempt %d, %+v", rec.State, rec.Attempt, rec.Label)
		}
	})
}
