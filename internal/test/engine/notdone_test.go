package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// holding returns an engine over an SQLite file that is locked by a transaction of the
// same process, or of another.
func holding(t *testing.T, another bool) *stet.Engine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stet.db")
	var stores [2]*sqlite.Store
	for i := range stores {
		var err error
		if stores[i], err = sqlite.Open(context.Background(), path, sqlite.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stores[i].Close() })
	}
	e := newEngine(t, stores[0], stet.Options{SweepEvery: -1})
	holder := stores[0]
	if another {
		holder = stores[1]
	}
	held, over := make(chan struct{}), make(chan struct{})
	go func() {
		_ = holder.InTx(context.Background(), func(context.Context, *sql.Tx) error {
			close(held)
			<-over
			return nil
		})
	}()
	t.Cleanup(func() { close(over) })
	<-held
	return e
}

// TestFullWaitForSQLiteIsReportedInTime: a call that has only waited for
// its turn has done nothing, and takes no longer than Options.StoreTimeout says.
func TestFullWaitForSQLiteIsReportedInTime(t *testing.T) {
	for holder, another := range map[string]bool{"the same process": false, "another process": true} {
		for name, call := range map[string]func(*stet.Engine) error{
			"Accept": func(e *stet.Engine) error { _, err := e.Accept(context.Background(), op, parcel); return err },
			"Do": func(e *stet.Engine) error {
				_, err := stet.Do(context.Background(), e, op, charge(new(int)))
				return err
			},
		} {
			t.Run(name+" while a transaction of "+holder+" is open", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := holding(t, another)
					began := time.Now()
					err := call(e)
					if took := time.Since(began); took > 7500*time.Millisecond {
						t.Errorf("it took %v", took)
					}
					if stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.NotExecuted {
						t.Errorf("%v", err)
					}
				})
			})
		}
	}
}

// undecided is a store whose calls of Accept fail in turn.
type undecided struct {
	*memory.Store
	errs []error
}

func (s *undecided) Accept(context.Context, store.ClaimRequest, []byte, time.Duration) (store.Record, error) {
	err := s.errs[0]
	s.errs = s.errs[1:]
	return store.Record{}, err
}

// TestRetry_MayHaveExecutedIfAnyTryMayHave: what a later try did not do, an
// earlier one may have.
func TestOneTryThatMayHaveHadItsEffectMakesTheResultUnknown(t *testing.T) {
	lost, waited := errors.New("the reply was lost"), errors.Join(errors.New("it waited too long"), store.ErrNotDone)
	for _, c := range []struct {
		errs []error
		want stet.Execution
	}{
		{[]error{waited, waited, waited, waited}, stet.NotExecuted},
		{[]error{waited, lost, waited, waited}, stet.MayHaveExecuted},
		{[]error{waited, waited, waited, lost}, stet.MayHaveExecuted},
	} {
		e := newEngine(t, &undecided{memory.New(memory.Options{}), c.errs}, stet.Options{})
		if _, err := e.Accept(t.Context(), op, parcel); stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != c.want {
			t.Errorf("%v: %v; want %v", c.errs, err, c.want)
		}
	}
}
