package mysql

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// confirms returns how many commits Read, Look and Browse make for the record.
func confirms(t *testing.T, s *Store, id store.ID) (read, browse int) {
	t.Helper()
	count := func(call func()) int {
		var before, after int
		const flushes = "SELECT flushes FROM stet_meta"
		if err := s.DB().QueryRow(flushes).Scan(&before); err != nil {
			t.Fatal(err)
		}
		call()
		if err := s.DB().QueryRow(flushes).Scan(&after); err != nil {
			t.Fatal(err)
		}
		return after - before
	}
	return count(func() { mustRead(t, s, id) }), count(func() {
		if _, err := s.Browse(t.Context(), store.Query{}); err != nil {
			t.Fatal(err)
		}
	})
}

// A transaction can settle a record, and commit much later: the record is then visible before it is on the disk.
func TestLateCommitIsConfirmed(t *testing.T) {
	long := 10 * time.Minute
	for name, settle := range map[string]func(*Store) store.ID{
		"SettleTx": func(s *Store) store.ID {
			rec := mustClaim(t, s, request("k"))
			if err := s.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				defer s.advance(long)
				return s.SettleTx(ctx, tx, rec.Claim(), completed("x"), keep)
			}); err != nil {
				t.Fatal(err)
			}
			return rec.ID
		},
		"RunTx": func(s *Store) store.ID {
			rec, err := s.RunTx(t.Context(), request("k"), keep, func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
				return completed("x"), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			s.advance(long)
			return rec.ID
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, Options{})
			if read, browse := confirms(t, s, settle(s)); read != 1 || browse != 1 {
				t.Errorf("Read makes %d commits, Browse %d; want 1 each", read, browse)
			}
		})
	}
}

func TestOldOutcomeIsNotConfirmed(t *testing.T) {
	s := openStore(t, Options{})
	rec := mustClaim(t, s, request("k"))
	mustSettle(t, s, rec.Claim(), "x")
	if read, browse := confirms(t, s, rec.ID); read != 1 || browse != 1 {
		t.Errorf("of a fresh outcome Read makes %d commits, Browse %d; want 1 each", read, browse)
	}
	s.advance(10 * time.Minute)
	if read, browse := confirms(t, s, rec.ID); read != 0 || browse != 0 {
		t.Errorf("of an old outcome Read makes %d commits, Browse %d; want none", read, browse)
	}
}

func TestConnectionOfCommittedTransactionIsNotEnded(t *testing.T) {
	s := openStore(t, Options{})
	s.DB().SetMaxOpenConns(1)
	connection := func() (id int64) {
		if err := s.DB().QueryRow("SELECT CONNECTION_ID()").Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	before := connection()
	rec, err := s.RunTx(t.Context(), request("k"), keep, func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
		return completed("x"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	(&transaction{s: s}).kill(t.Context(), rec)
	time.Sleep(50 * time.Millisecond)
	if after := connection(); after != before {
		t.Error("the connection of a committed transaction was ended")
	}
}

func TestServerCanLoseItsBinaryLog(t *testing.T) {
	s := openStore(t, Options{})
	rec := mustClaim(t, s, request("k"))
	s.late.Store(false) // as after a restart without it
	if read, _ := confirms(t, s, rec.ID); read != 1 {
		t.Errorf("Read makes %d commits; want 1", read)
	}
}
