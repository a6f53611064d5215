package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// overtaken is an error of a store that says by a method which sentinel it is.
type overtaken struct{}

func (overtaken) Error() string        { return "overtaken" }
func (overtaken) Is(target error) bool { return target == store.ErrFenced }

func TestKindOfIsThatOfTheOutermostError(t *testing.T) {
	inner := &stet.Error{Kind: stet.KindInFlight}
	for name, c := range map[string]struct {
		err  error
		want stet.Kind
	}{
		"none":                  {nil, 0},
		"another's":             {errors.New("declined"), 0},
		"a cause of a context":  {stet.ErrLeaseLost, 0},
		"an engine's":           {inner, stet.KindInFlight},
		"wrapped":               {fmt.Errorf("charge: %w", inner), stet.KindInFlight},
		"one in another":        {&stet.Error{Kind: stet.KindFailed, Cause: inner}, stet.KindFailed},
		"a store's in it":       {&stet.Error{Kind: stet.KindStore, Cause: store.ErrFenced}, stet.KindStore},
		"joined":                {errors.Join(errors.New("declined"), inner, &stet.Error{Kind: stet.KindFailed}), stet.KindInFlight},
		"of two causes":         {fmt.Errorf("%w, and then: %w", errors.New("declined"), inner), stet.KindInFlight},
		"a store's, invalid":    {fmt.Errorf("%w: no owner", store.ErrInvalid), stet.KindInvalid},
		"a store's, mismatch":   {store.ErrMismatch, stet.KindMismatch},
		"a store's, fenced":     {store.ErrFenced, stet.KindFenced},
		"a store's, unknown":    {store.ErrUnknown, stet.KindUnknown},
		"a store's own, fenced": {fmt.Errorf("settle: %w", overtaken{}), stet.KindFenced},
		"a store's, unreadable": {store.ErrDamaged, stet.KindDamaged},
	} {
		if got := stet.KindOf(c.err); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestKindsHaveWordsOfTheirOwn(t *testing.T) {
	seen := make(map[string]bool)
	for k := stet.KindInvalid; k <= stet.KindClosed; k++ {
		if err := (&stet.Error{Kind: k}); seen[k.String()] || err.Error() != k.String()+" (may have executed)" {
			t.Errorf("%d says %q", k, k)
		}
		seen[k.String()] = true
	}
	if len(seen) != 12 || stet.Kind(0).String() != "stet: no kind" || (stet.KindClosed+1).String() != "stet: no kind" {
		t.Errorf("%d kinds, and then %q, %q", len(seen), stet.Kind(0), stet.KindClosed+1)
	}
}

// What a handler says of its own run, by a mark on its error, says nothing of the run
// of a handler that called the operation and returns the error on.
func TestMarkOfAnotherOperationsHandlerIsNotTheHandlersOwn(t *testing.T) {
	for name, c := range map[string]struct {
		mark  func(error) error
		inner stet.Kind
	}{
		"retryable":  {stet.Retryable, stet.KindRetryable},
		"repeatable": {stet.Repeatable, stet.KindRetryable},
		"permanent":  {stet.Permanent, stet.KindFailed},
	} {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		st, te := bank(t)
		inside := func(ctx context.Context) error {
			other := op
			other.Key = "inside"
			_, err := stet.Do(ctx, e, other, func(context.Context) (int, error) { return 0, c.mark(errors.New("declined")) })
			if stet.KindOf(err) != c.inner {
				t.Errorf("%s: inside: got %v, want %v", name, err, c.inner)
			}
			return fmt.Errorf("charge: %w", err)
		}
		if _, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) { return 0, inside(ctx) }); stet.KindOf(err) != stet.KindFailed {
			t.Errorf("%s: in Do: got %v, want %v", name, err, stet.KindFailed)
		}
		if _, err := stet.DoTx(t.Context(), txOf(te, st), op, func(ctx context.Context, _ *sql.Tx) (int, error) { return 0, inside(ctx) }); stet.KindOf(err) != stet.KindRetryable {
			t.Errorf("%s: in DoTx: got %v, want %v, as it was rolled back", name, err, stet.KindRetryable)
		}
	}
}

func TestMarkOfNoErrorIsNone(t *testing.T) {
	if err := errors.Join(stet.Retryable(nil), stet.Repeatable(nil), stet.Permanent(nil)); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}

func TestErrorOfAClosedEngineHasItsCause(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindClosed || !errors.Is(err, stet.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
