package reconcile_test

import (
	"context"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
)

// A verifier that looks in the books by key finds nothing under an empty one.
func TestVerifierByKeyIsNotCalledWithoutAKey(t *testing.T) {
	var asked []stet.Op
	verify := func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		asked = append(asked, st.Op)
		if st.Op.Key == "a" { // the books
			return happened, nil
		}
		return stet.ItDidNotHappen(), nil
	}
	inMemory(t, stet.Options{Policy: stet.Policy{Verify: verify}}, func(t *testing.T, b *bench) {
		op := b.op("a", "")
		op.Ref = "order 7"
		run, err := b.engine.Begin(ctx, op)
		must(t, err)
		must(t, run.MarkUnknown(ctx))
		if got := b.pass(reconcile.Options{}); got != (reconcile.Report{Looked: 1, Blind: 1}) || len(asked) != 0 {
			t.Errorf("%+v, the verifier was asked about %+v; want it left, and nothing asked", got, asked)
		}
		b.is(run.ID(), store.Unknown)
		again, err := b.engine.Begin(ctx, op)
		if err != nil || !again.Replayed() {
			t.Errorf("a retry: %+v, %v; want what the books say", again, err)
		}
	})
}
