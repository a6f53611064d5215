package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/storetest"
)

// finish ends a run with a row in the ledger.
func finish(t *testing.T, e *stet.Engine, run *stet.Lease, s store.WorkTxStore[*sql.Tx], fails error) error {
	t.Helper()
	return txOf(e, s).Finish(t.Context(), run, func(ctx context.Context, tx *sql.Tx) (stet.Outcome, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO ledger VALUES ('shipped', 1)`); err != nil {
			t.Error(err)
		}
		if err := run.Emit(stet.Message{To: "shipped"}); err != nil {
			t.Error(err)
		}
		return stet.Outcome{Body: []byte("shipped")}, fails
	})
}

func TestOutcomeIsCommittedWithTheWorkersRows(t *testing.T) {
	store, e := bank(t)
	it := accept(t, e, op, parcel)
	run, down := take(t, e, it), errors.New("down")
	if err := finish(t, e, run, store, down); err != down || charges(t, store) != 0 {
		t.Fatalf("%v, %d rows", err, charges(t, store))
	}
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic was swallowed")
			}
		}()
		_ = txOf(e, store).Finish(t.Context(), run, func(context.Context, *sql.Tx) (stet.Outcome, error) { panic("boom") })
	}()
	if run.Context().Err() != nil {
		t.Fatal("a rollback ended the run")
	}
	if err := finish(t, e, run, store, nil); err != nil || charges(t, store) != 1 {
		t.Fatalf("%v, %d rows", err, charges(t, store))
	}
	if run.Context().Err() == nil {
		t.Error("the run has not ended")
	}
	if err := finish(t, e, run, store, nil); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a second end: %v", err)
	}
	if again := take(t, e, it); !again.Replayed() || string(again.Outcome().Body) != "shipped" {
		t.Errorf("%+v", again.Outcome())
	}
	// Of the tries that were rolled back nothing is sent.
	if all := messages(t, e); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestStaleWorkerWritesNothing(t *testing.T) {
	st, e := bank(t)
	other := newEngine(t, st, stet.Options{})
	it := accept(t, e, op, parcel)
	stale := take(t, e, it)
	if err := st.Return(t.Context(), claimOf(t, st, stale), 0); err != nil { // by an operator, who believed it dead
		t.Fatal(err)
	}
	if err := finish(t, e, stale, st, nil); stet.KindOf(err) != stet.KindFenced || charges(t, st) != 0 {
		t.Errorf("while it waits for another: %v, %d rows", err, charges(t, st))
	}
	if err := finish(t, other, take(t, other, it), st, nil); err != nil {
		t.Fatal(err)
	}
	if err := finish(t, e, stale, st, nil); stet.KindOf(err) != stet.KindFenced || charges(t, st) != 1 {
		t.Errorf("when another has finished: %v, %d rows", err, charges(t, st))
	}
	if err := stale.Release(t.Context(), stet.Again{}); stet.KindOf(err) != stet.KindFenced {
		t.Errorf("its return: %v", err)
	}
	status(t, other, it.ID, store.Completed)
}

func TestCommitIsNotRepeated_ReplyLost(t *testing.T) {
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
		run := take(t, e, it)
		if err := finish(t, e, run, faulty, nil); stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.MayHaveExecuted {
			t.Errorf("%v", err)
		}
		err := run.Release(t.Context(), stet.Again{})
		if committed := fault == storetest.FailAfter; (stet.KindOf(err) == stet.KindFenced) != committed {
			t.Errorf("committed: %v; the return: %v", committed, err)
		}
		if run := take(t, e, it); !run.Replayed() {
			if err := finish(t, e, run, faulty, nil); err != nil {
				t.Error(err)
			}
		}
		if n, all := charges(t, st), messages(t, e); n != 1 || len(all) != 1 {
			t.Errorf("%d rows, messages %+v", n, all)
		}
	}
}

var _ store.WorkTxStore[*sql.Tx] = (*sqlite.Store)(nil)
