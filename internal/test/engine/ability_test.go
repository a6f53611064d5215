package engine_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// emitting runs an operation that emits a message.
func emitting(t *testing.T, e *stet.Engine, key string) error {
	t.Helper()
	_, err := stet.Do(t.Context(), e, stet.Op{Scope: "acct_1", Key: key}, func(ctx context.Context) (int, error) {
		return 0, stet.FromContext(ctx).Emit(stet.Message{To: "x"})
	})
	return err
}

func refused(t *testing.T, what string, err error, says string) {
	t.Helper()
	if stet.KindOf(err) != stet.KindInvalid && stet.KindOf(err) != stet.KindFailed || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v; want an error with %q", what, err, says)
	}
}

func TestStoreMayKeepWorkOrMessagesAlone(t *testing.T) {
	s := memory.New(memory.Options{})
	works := newEngine(t, struct{ store.WorkStore }{s}, stet.Options{})
	accept(t, works, op, parcel)
	refused(t, "Emit over a store of work", emitting(t, works, "a"), "has no outbox")
	sends := newEngine(t, struct{ store.OutboxStore }{s}, stet.Options{})
	if err := emitting(t, sends, "b"); err != nil {
		t.Errorf("Emit over a store of messages: %v", err)
	}
	if recs, err := s.DueMessages(t.Context(), 10, time.Minute); err != nil || len(recs) != 1 {
		t.Errorf("%d records have messages, %v; want 1", len(recs), err)
	}
	_, err := sends.Accept(t.Context(), op, parcel)
	refused(t, "Accept over a store of messages", err, "does not store work")
}

// An engine finds the abilities of its store behind any number of wrappers with Unwrap.
func TestWrapperWithUnwrapKeepsAbilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		e := newEngine(t, inFront{inFront{s}}, stet.Options{})
		accept(t, e, op, parcel)
		if err := emitting(t, e, "a"); err != nil {
			t.Errorf("Emit: %v", err)
		}
		run, err := e.Begin(t.Context(), stet.Op{Scope: "acct_1", Key: "watched"})
		if err != nil {
			t.Fatal(err)
		}
		waited, other := make(chan time.Duration), newEngine(t, inFront{s}, stet.Options{})
		go func() { // of another process, which polls where it cannot watch
			began := time.Now()
			_, err := stet.Do(t.Context(), other, stet.Op{Scope: "acct_1", Key: "watched", Wait: time.Minute}, func(context.Context) (int, error) { return 0, nil })
			if err != nil {
				t.Error(err)
			}
			waited <- time.Since(began)
		}()
		time.Sleep(time.Second + time.Millisecond)
		complete(t, run, "1")
		if d := <-waited; d != time.Second+time.Millisecond {
			t.Errorf("a waiter returned after %v; want at the end of the run, as by a store.Watcher", d)
		}
		time.Sleep(60 * 24 * time.Hour)
		if n := s.Len(); n != 2 { // all but what waits to be run, and to be sent
			t.Errorf("%d records are left after 60 days; want 2: it is swept", n)
		}
	})
}

func TestWrapperWithoutUnwrapLosesAbilitiesAloud(t *testing.T) {
	e := newEngine(t, struct{ store.Store }{memory.New(memory.Options{})}, stet.Options{})
	_, err := e.Accept(t.Context(), op, parcel)
	refused(t, "Accept", err, "or a store.Wrapper around one")
	refused(t, "Emit", emitting(t, e, "a"), "or a store.Wrapper around one")
}

// txInFront is a wrapper of a store with transactions.
type txInFront struct{ store.TxStore[*sql.Tx] }

func (f txInFront) Unwrap() store.Store { return f.TxStore }

func TestWrapperOfTransactionsKeepsWork(t *testing.T) {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, c := range map[string]struct {
		s    store.TxStore[*sql.Tx]
		says string
	}{
		"with Unwrap":    {txInFront{s}, ""},
		"without Unwrap": {struct{ store.TxStore[*sql.Tx] }{s}, "does not store work in transactions"},
	} {
		te, err := stet.WithTx(newEngine(t, c.s, stet.Options{}), c.s)
		if err != nil {
			t.Fatal(err)
		}
		err = te.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := te.Accept(ctx, tx, op, parcel)
			return err
		})
		if c.says == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if c.says != "" {
			refused(t, name, err, c.says)
		}
	}
}
