package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// A file of the first version is migrated when it is opened, and its content
// stays.
func TestOlderFileIsBroughtUpToDate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	id, owner := request("old").ID, store.NewOwner()
	scope, fingerprint := request("old").Scope, request("old").Fingerprint
	if _, err := db.Exec(steps[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`INSERT INTO stet_records (fence, id, scope, fingerprint, owner, state, attempt, claimed, settled, body)
		VALUES (7, ?, ?, ?, ?, 2, 1, 1, 2, x'78')`, id[:], scope[:], fingerprint[:], owner[:]); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 4)
	for range cap(errs) { // several processes at a time
		go func() {
			s, err := Open(context.Background(), path, Options{})
			if err == nil {
				err = s.Close()
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	s := openStore(t, Options{}, path)
	if rec := mustRead(t, s, id); rec.State != store.Completed || string(rec.Result.Body) != "x" || rec.Fence != 7 {
		t.Errorf("the record is now %+v", rec)
	}
	if rec := mustAccept(t, s, request("new"), "work"); rec.Fence != 8 {
		t.Errorf("accepted: %+v", rec)
	}
	if rec := mustTake(t, s, request("new").ID); string(rec.Work) != "work" {
		t.Errorf("taken: %+v", rec)
	}
}

func plan(t *testing.T, s *Store, q query, args ...any) string {
	t.Helper()
	rows, err := s.DB().Query("EXPLAIN QUERY PLAN "+sqlText[q], args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var a, b, c int
		var line string
		if err := rows.Scan(&a, &b, &c, &line); err != nil {
			t.Fatal(err)
		}
		plan.WriteString(line + "\n")
	}
	return plan.String()
}

func TestDueReadsOnlyDueRecords(t *testing.T) {
	s := openStore(t, Options{})
	for q, want := range map[query]string{qDueJobs: "run (name=? AND run_due<?)", qDueMessages: "relay (relay_due<?)"} {
		args := []any{0, 10, 0}
		if q == qDueJobs {
			args = append([]any{"a"}, args...)
		}
		if got := plan(t, s, q, args...); !strings.Contains(got, "SEARCH stet_records USING INDEX stet_records_"+want) || strings.Contains(got, "TEMP B-TREE") {
			t.Errorf("the plan is\n%s", got)
		}
	}
	for q, args := range map[query][]any{qJobLater: {0, 0, 0}, qMessagesLater: {0, 0, 0}, qNames: {"", 1}} {
		if got := plan(t, s, q, args...); strings.Contains(got, "SCAN stet_records") || strings.Contains(got, "TEMP B-TREE") {
			t.Errorf("the plan is\n%s", got)
		}
	}
}

func TestDueIsBoundedInBytes(t *testing.T) {
	s := openStore(t, Options{})
	large := strings.Repeat("x", dueBytes/4+1)
	for i := range 6 {
		mustAccept(t, s, request(fmt.Sprint(i)), large)
	}
	mustAccept(t, s, request("huge"), strings.Repeat("x", dueBytes+1))
	for _, want := range []int{3, 3, 1, 0} {
		recs, err := s.Due(t.Context(), 100, time.Hour)
		if err != nil || len(recs) != want {
			t.Fatalf("%d records, %v; want %d", len(recs), err, want)
		}
	}
}

// A caller that polls without finding work must not delay writers.
func TestDueOfNothingWaitsForNoWriter(t *testing.T) {
	s := openStore(t, Options{})
	tx, err := s.DB().BeginTx(t.Context(), nil) // has the lock
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if recs, err := s.Due(t.Context(), 10, time.Minute); err != nil || len(recs) != 0 {
		t.Errorf("Due: %+v, %v", recs, err)
	}
	if recs, err := s.DueMessages(t.Context(), 10, time.Minute); err != nil || len(recs) != 0 {
		t.Errorf("DueMessages: %+v, %v", recs, err)
	}
}

// A worker whose COMMIT failed returns the operation, unless the commit took effect.
func TestReturnAfterAnUnacknowledgedCommit(t *testing.T) {
	lost := errors.New("connection lost")
	for name, c := range map[string]struct {
		commit  func(*sql.Tx) error
		fenced  bool
		charges int
	}{
		"after it took effect":  {func(tx *sql.Tx) error { return errors.Join(tx.Commit(), lost) }, true, 1},
		"before it took effect": {func(*sql.Tx) error { return lost }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := ledger(t, Options{})
			mustAccept(t, s, request("k"), "work")
			rec := mustTake(t, s, request("k").ID)
			s.commit = c.commit
			err := s.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				out, err := charge(ctx, tx, rec)
				return errors.Join(err, s.SettleTx(ctx, tx, rec.Claim(), out, keep))
			})
			if !errors.Is(err, lost) {
				t.Errorf("InTx: %v", err)
			}
			s.commit = (*sql.Tx).Commit
			if err := s.Return(t.Context(), rec.Claim(), 0); errors.Is(err, store.ErrFenced) != c.fenced || err != nil && !c.fenced {
				t.Errorf("Return: %v; fenced off should be %v", err, c.fenced)
			}
			want := store.Accepted
			if c.fenced {
				want = store.Completed
			}
			if now := mustRead(t, s, rec.ID); now.State != want || charges(t, s) != c.charges {
				t.Errorf("the record is %+v, and there are %d charges", now, charges(t, s))
			}
		})
	}
}

// It would wait for the writer that its own caller has.
func TestWritesFromInsideInTxAreRefused(t *testing.T) {
	s := openStore(t, Options{})
	mustAccept(t, s, request("k"), "work")
	rec := mustTake(t, s, request("k").ID)
	err := s.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		for name, err := range map[string]error{
			"Save": s.Save(ctx, rec.Claim(), store.Notes{Version: 1, Data: []byte("notes")}, false),
			"InTx": s.InTx(ctx, func(context.Context, *sql.Tx) error { return nil }),
		} {
			if !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		return s.SaveTx(ctx, tx, rec.Claim(), store.Notes{Version: 1, Data: []byte("notes")}, false)
	})
	if err != nil {
		t.Error(err)
	}
	if now, err := s.Look(t.Context(), rec.ID); err != nil || string(now.Notes.Data) != "notes" {
		t.Errorf("Look: %+v, %v", now, err)
	}
}

func TestFunctionCannotEndInTxUnseen(t *testing.T) {
	s := openStore(t, Options{})
	for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		err := s.InTx(t.Context(), func(_ context.Context, tx *sql.Tx) error { return end(tx) })
		if !errors.Is(err, store.ErrUnknown) {
			t.Errorf("%s: %v; want ErrUnknown", name, err)
		}
	}
}
