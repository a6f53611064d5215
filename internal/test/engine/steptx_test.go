package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/storetest"
)

func TestTransactionalStepHasItsEffectOnce(t *testing.T) {
	st, e := bank(t)
	it := accept(t, e, op, parcel)
	runs, down := 0, errors.New("down")
	step := func(run *stet.Lease, s store.WorkTxStore[*sql.Tx], end func() error) (string, error) {
		return stet.StepTx(run.Context(), txOf(e, s), "reserve", func(ctx context.Context, tx *sql.Tx) (string, error) {
			runs++
			if err := book(ctx, tx); err != nil {
				t.Error(err)
			}
			return fmt.Sprint("run ", runs), end()
		})
	}
	fine := func() error { return nil }
	run := take(t, e, it)
	if _, err := step(run, st, func() error { return down }); err != down {
		t.Errorf("its own error: %v", err)
	}
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = step(run, st, func() error { panic("boom") })
	}()
	if n := charges(t, st); n != 0 {
		t.Fatalf("%d charges after it was rolled back", n)
	}
	for range 3 {
		if v, err := step(run, st, fine); err != nil || v != "run 3" {
			t.Fatalf("%q, %v", v, err)
		}
		run = again(t, e, run, it)
	}
	if n := charges(t, st); n != 1 {
		t.Errorf("%d charges", n)
	}
}

// The transaction may be committed. The run does not overwrite its notes, and the next
// attempt reads them.
func TestTransactionalStep_ReplyLost(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.FailBefore, storetest.FailAfter} {
		st, _ := bank(t)
		faulty := storetest.FaultyTx[*sql.Tx](st, func(c storetest.Call) storetest.Fault {
			if c.Method == "InTx" && c.N == 1 {
				return fault
			}
			return storetest.NoFault
		}).(store.WorkTxStore[*sql.Tx])
		e := newEngine(t, faulty, stet.Options{})
		it := accept(t, e, op, parcel)
		run, runs := take(t, e, it), 0
		step := func() (int, error) {
			return stet.StepTx(run.Context(), txOf(e, faulty), "reserve", func(ctx context.Context, tx *sql.Tx) (int, error) {
				runs++
				return runs, book(ctx, tx)
			})
		}
		if _, err := step(); stet.KindOf(err) != stet.KindStore {
			t.Errorf("%v", err)
		}
		if fault == storetest.FailAfter {
			other := 0
			if _, err := stet.Step(run.Context(), "another", counted(&other, nil)); stet.KindOf(err) != stet.KindStore {
				t.Errorf("another step of the same run: %v; it would overwrite unknown notes", err)
			}
		}
		run = again(t, e, run, it)
		if v, err := step(); err != nil || v != 1 || charges(t, st) != 1 || runs != 1 {
			t.Errorf("the next attempt: %d, %v, %d runs, %d charges", v, err, runs, charges(t, st))
		}
	}
}

// After a certain rollback, the notes are known.
func TestTransactionalStep_ResultDoesNotFit(t *testing.T) {
	st, e := bank(t)
	run := take(t, e, accept(t, e, op, parcel))
	step := func(size int) error {
		_, err := stet.StepTx(run.Context(), txOf(e, st), "reserve", func(ctx context.Context, tx *sql.Tx) (string, error) {
			return strings.Repeat("x", size), book(ctx, tx)
		})
		return err
	}
	if err := step(store.MaxNotes); stet.KindOf(err) != stet.KindInvalid || charges(t, st) != 0 {
		t.Errorf("%v, %d charges", err, charges(t, st))
	}
	if err := step(10); err != nil || charges(t, st) != 1 {
		t.Errorf("a smaller one: %v, %d charges", err, charges(t, st))
	}
}

func TestTransactionalStepIsNotCommittedTwiceAtATime(t *testing.T) {
	store, _ := bank(t)
	e := newEngine(t, loose{store}, stet.Options{})
	run := take(t, e, accept(t, e, op, parcel))
	runs := 0
	step := func(inside func()) error {
		_, err := stet.StepTx(run.Context(), txOf(e, loose{store}), "reserve", func(ctx context.Context, tx *sql.Tx) (int, error) {
			runs++
			inside()
			return runs, nil
		})
		return err
	}
	err := step(func() { // as if it was begun by another goroutine
		if err := step(func() {}); stet.KindOf(err) != stet.KindInvalid {
			t.Error(err)
		}
	})
	if err != nil || runs != 1 {
		t.Errorf("%v, %d runs", err, runs)
	}
	if err := step(func() {}); stet.KindOf(err) != stet.KindInvalid || runs != 1 {
		t.Errorf("again: %v, %d runs", err, runs)
	}
}

// loose is a store whose transactions do not keep each other out.
type loose struct{ *sqlite.Store }

func (s loose) InTx(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return fn(ctx, nil)
}

func (s loose) SaveTx(ctx context.Context, _ *sql.Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.Save(ctx, c, notes, repeatable)
}
