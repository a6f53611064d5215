package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// What an error says of the effect counts for more than that it is the context's.
func TestErrorOfAContextThatEndedIsUnknownUnlessTheHandlerKnows(t *testing.T) {
	for name, c := range map[string]struct {
		says func(context.Context, error) error
		want stet.Kind
		exec stet.Execution
	}{
		"nothing":              {func(_ context.Context, err error) error { return err }, stet.KindUnknown, stet.MayHaveExecuted},
		"words":                {func(context.Context, error) error { return errors.New("declined") }, stet.KindFailed, stet.MayHaveExecuted},
		"permanent":            {func(_ context.Context, err error) error { return stet.Permanent(err) }, stet.KindFailed, stet.MayHaveExecuted},
		"permanent, retryable": {func(context.Context, error) error { return stet.Permanent(stet.Retryable(errors.New("busy"))) }, stet.KindFailed, stet.NotExecuted},
		"wraps":                {func(_ context.Context, err error) error { return stet.Retryable(err) }, stet.KindRetryable, stet.NotExecuted},
		"repeatable":           {func(_ context.Context, err error) error { return stet.Repeatable(err) }, stet.KindRetryable, stet.MayHaveExecuted},
		"declares": {func(ctx context.Context, err error) error {
			stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
			return err
		}, stet.KindRetryable, stet.NotExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{RunTimeout: time.Minute}})
				_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
					<-ctx.Done()
					return 0, c.says(ctx, context.Cause(ctx))
				})
				if stet.KindOf(err) != c.want || stet.ExecutionOf(err) != c.exec {
					t.Errorf("got %v; want %v (%v)", err, c.want, c.exec)
				}
			})
		})
	}
}

func TestPermanentErrorIsSettledAfterTheRollback(t *testing.T) {
	store, e := bank(t)
	declined := errors.New("declined")
	for want := range 2 {
		res, err := stet.DoTx(t.Context(), txOf(e, store), op, func(ctx context.Context, tx *sql.Tx) (int, error) {
			if want > 0 {
				t.Error("it ran again")
			}
			return 1, stet.Permanent(errors.Join(book(ctx, tx), stet.Retryable(errors.New("busy")), declined))
		})
		if stet.KindOf(err) != stet.KindFailed || stet.ExecutionOf(err) != stet.NotExecuted || res.Replayed != (want == 1) {
			t.Errorf("call %d: got %+v, %v; want failed, replayed %v", want+1, res, err, want == 1)
		}
	}
	if n := charges(t, store); n != 0 {
		t.Errorf("%d rows; want none", n)
	}
}

// A run whose handler has returned holds its claim no longer, whatever a face says of
// its next one.
func TestRunIsReleasedForAsLongAsCanBe(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{SweepEvery: -1})
	for name, c := range map[string]struct {
		run  *stet.Lease
		want store.State
	}{
		"begun": {begin(t, e, other), store.Retryable},
		"taken": {take(t, e, accept(t, e, op, parcel)), store.Accepted},
	} {
		again := func(error) stet.Again { return stet.Again{After: 2 * store.MaxDelay} }
		_, err := c.run.Do(t.Context(), again, func(context.Context) (stet.Outcome, error) {
			return stet.Outcome{}, stet.Retryable(errors.New("busy"))
		})
		if rec, unread := st.Read(t.Context(), c.run.ID()); unread != nil || stet.KindOf(err) != stet.KindRetryable || rec.State != c.want {
			t.Errorf("%s, to be run again in two years: %v, and the record is %v, %v; want it %v", name, err, rec.State, unread, c.want)
		}
	}
}
