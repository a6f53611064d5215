package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// interrupted is a store that calls between before its second transaction.
type interrupted struct {
	*sqlite.Store
	calls   int
	between func()
}

func (s *interrupted) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	if s.calls++; s.calls == 2 {
		s.between()
	}
	return s.Store.RunTx(ctx, req, keep, fn)
}

// A refusal is stored in a second transaction, after its own was rolled back.
func TestRefusalAfterAnotherRun_MayHaveExecuted(t *testing.T) {
	st, other := bank(t)
	s := &interrupted{Store: st}
	e := newEngine(t, s, stet.Options{})
	s.between = func() {
		_, err := stet.Do(t.Context(), other, op, func(context.Context) (int, error) {
			return 0, stet.Repeatable(errors.New("it may have charged"))
		})
		if stet.KindOf(err) != stet.KindRetryable {
			t.Errorf("the other run ended with %v", err)
		}
	}
	_, err := stet.DoTx(t.Context(), txOf[*sql.Tx](e, s), op, func(context.Context, *sql.Tx) (int, error) {
		return 0, stet.Permanent(stet.Retryable(errors.New("declined")))
	})
	if stet.KindOf(err) != stet.KindFailed || stet.ExecutionOf(err) != stet.MayHaveExecuted || s.calls != 2 {
		t.Errorf("%v (%v) after %d transactions; want failed, may have executed, after 2", err, stet.ExecutionOf(err), s.calls)
	}
}

func TestStoredFailureIsNotExecuted_UnlessARunMayHaveHadAnEffect(t *testing.T) {
	refused := stet.Permanent(stet.Retryable(errors.New("declined")))
	for name, c := range map[string]struct {
		earlier error // of an earlier attempt
		handler func(context.Context) error
		want    stet.Execution
	}{
		"first attempt": {nil, func(context.Context) error { return refused }, stet.NotExecuted},
		"declared": {nil, func(ctx context.Context) error {
			stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
			return stet.Permanent(errors.New("declined"))
		}, stet.NotExecuted},
		"no word of the effect": {nil, func(context.Context) error { return stet.Permanent(errors.New("declined")) }, stet.MayHaveExecuted},
		"also repeatable":       {nil, func(context.Context) error { return stet.Repeatable(refused) }, stet.MayHaveExecuted},
		"second attempt":        {stet.Repeatable(errors.New("timeout")), func(context.Context) error { return refused }, stet.MayHaveExecuted},
		"after a step": {nil, func(ctx context.Context) error {
			_, err := stet.Step(ctx, "charge", func(context.Context) (int, error) { return 1, nil })
			return errors.Join(err, refused)
		}, stet.MayHaveExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
			if c.earlier != nil {
				_, _ = stet.Do(t.Context(), e, op, func(context.Context) (int, error) { return 0, c.earlier })
			}
			for range 2 { // first, replay
				_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) { return 0, c.handler(ctx) })
				if stet.KindOf(err) != stet.KindFailed || stet.ExecutionOf(err) != c.want {
					t.Errorf("%v (%v); want failed, %v", err, stet.ExecutionOf(err), c.want)
				}
			}
		})
	}
}
