package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

func TestPathsThatKeepNothingAreRefused(t *testing.T) {
	for _, path := range []string{"", ":memory:", "file:x.db", "a\x00b"} {
		if _, err := Open(t.Context(), path, Options{}); err == nil {
			t.Errorf("%q was opened", path)
		}
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{{BusyTimeout: -1}, {BusyTimeout: 1}, {MaxQueue: -1}, {MaxReaders: -1}} {
		if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), o); err == nil || !strings.Contains(err.Error(), "Options.") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestOddFileNamesNameThatFile(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"plain.db", "with space.db", "50%.db", "a%20b.db", "what?.db", "x?mode=memory", "a#b.db", "a&b=c;d.db", "ü.db", "./file:x.db"} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, Options{}, name)
			rec := mustClaim(t, s, request("k"))
			mustSettle(t, s, rec.Claim(), "done")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(name); err != nil || info.Size() == 0 {
				t.Errorf("the file: %v", err)
			}
			if rec := mustRead(t, openStore(t, Options{}, name), request("k").ID); string(rec.Result.Body) != "done" {
				t.Errorf("reopened: %+v", rec)
			}
		})
	}
}

func TestRelativePathStaysTheSameFile(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	s := openStore(t, Options{}, "stet.db")
	t.Chdir(t.TempDir())
	mustClaim(t, s, request("k")) // over connections that are dialled only now
	mustRead(t, s, request("k").ID)
	if _, err := s.DB().Exec("CREATE TABLE x (y)"); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob("*"); len(left) != 0 {
		t.Errorf("files in the new folder: %v", left)
	}
}

// A copy of the files, taken while the store is open, is what a crash leaves.
func TestAcknowledgedWritesOutliveACrash(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	s := openStore(t, Options{}, filepath.Join(dir, "stet.db"))
	settled := mustClaim(t, s, request("settled"))
	mustSettle(t, s, settled.Claim(), "done")
	claimed := mustClaim(t, s, request("claimed"))
	if err := s.w.acquire(t.Context()); err != nil { // in the middle of a transaction
		t.Fatal(err)
	}
	tx, err := s.begin(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := release(s.session(t.Context(), tx), claimed.Claim(), keep); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, "stet.db"+suffix))
		if err == nil {
			err = os.WriteFile(filepath.Join(copied, "stet.db"+suffix), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = tx.Rollback()
	s.w.release()

	after := openStore(t, Options{}, filepath.Join(copied, "stet.db"))
	if rec := mustRead(t, after, settled.ID); rec.State != store.Completed || string(rec.Result.Body) != "done" {
		t.Errorf("settled: %+v", rec)
	}
	if rec := mustRead(t, after, claimed.ID); rec.State != store.Running || rec.Fence != claimed.Fence {
		t.Errorf("claimed: %+v", rec)
	}
	if rec := mustClaim(t, after, request("new")); rec.Fence <= claimed.Fence {
		t.Errorf("fence %d after %d", rec.Fence, claimed.Fence)
	}
}

func TestFenceOutlivesEveryRecordAndTheClock(t *testing.T) {
	clock := newClock()
	path := filepath.Join(t.TempDir(), "stet.db")
	var last int64
	for _, jump := range []time.Duration{3 * time.Hour, -100 * time.Hour, 200 * time.Hour} {
		s := openStore(t, Options{Clock: clock.Now}, path)
		rec := mustClaim(t, s, request("k"))
		if rec.Fence <= last {
			t.Fatalf("fence %d after %d", rec.Fence, last)
		}
		last = rec.Fence
		mustSettle(t, s, rec.Claim(), "done")
		clock.Advance(3 * time.Hour)
		if swept, err := s.Sweep(t.Context(), 10); err != nil || swept.Purged != 1 {
			t.Fatalf("Sweep: %+v, %v", swept, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		clock.Advance(jump)
	}
	// Nor does a deletion by hand bring one back.
	s := openStore(t, Options{Clock: clock.Now}, path)
	rec := mustClaim(t, s, request("k"))
	if _, err := s.DB().Exec("DELETE FROM stet_records"); err != nil {
		t.Fatal(err)
	}
	if again := mustClaim(t, s, request("k")); again.Fence <= rec.Fence {
		t.Errorf("fence %d after %d", again.Fence, rec.Fence)
	}
}

func TestSweepReadsOnlyDueRecords(t *testing.T) {
	s := openStore(t, Options{})
	if got := plan(t, s, qSweep, 0, 10); !strings.Contains(got, "SEARCH stet_records USING INDEX stet_records_due (due<?)") || strings.Contains(got, "TEMP B-TREE") {
		t.Errorf("the plan is\n%s", got)
	}
}

func TestSweepIsBounded(t *testing.T) {
	clock := newClock()
	s := openStore(t, Options{Clock: clock.Now})
	for i := range 25 {
		mustClaim(t, s, request(fmt.Sprint(i)))
	}
	if swept, err := s.Sweep(t.Context(), 10); err != nil || swept != (store.Swept{}) {
		t.Errorf("live claims: %+v, %v", swept, err)
	}
	clock.Advance(time.Minute)
	for _, want := range []store.Swept{{MarkedUnknown: 10, More: true}, {MarkedUnknown: 10, More: true}, {MarkedUnknown: 5}, {}} {
		if swept, err := s.Sweep(t.Context(), 10); err != nil || swept != want {
			t.Errorf("%+v, %v; want %+v", swept, err, want)
		}
	}
}

func TestNewFileIsCreatedOnce(t *testing.T) {
	for range 10 {
		path := filepath.Join(t.TempDir(), "stet.db")
		stores := make([]*Store, 4)
		var wg sync.WaitGroup
		for i := range stores {
			wg.Go(func() {
				s, err := Open(context.Background(), path, Options{})
				if err != nil {
					t.Error(err)
					return
				}
				stores[i] = s
			})
		}
		wg.Wait()
		var last int64
		for i, s := range stores {
			if s == nil {
				continue
			}
			rec := mustClaim(t, s, request(fmt.Sprint(i)))
			if rec.Fence <= last {
				t.Errorf("fence %d after %d", rec.Fence, last)
			}
			last = rec.Fence
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestNewerTablesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{}, path)
	if _, err := s.DB().Exec("UPDATE stet_meta SET schema = ?", schemaVersion+1); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), path, Options{})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("version ", schemaVersion+1)) || !strings.Contains(err.Error(), "or a later one") || !errors.Is(err, store.ErrNewerTables) {
		t.Errorf("Open: %v", err)
	}
}

func TestUnusableFileErrorsHaveTheReason(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		garbage:     "not an SQLite database",
		t.TempDir(): "cannot be opened",
		filepath.Join(t.TempDir(), "no", "folder.db"): "folder must exist",
	} {
		if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; it should say %q", path, err, says)
		}
	}
}

func TestDamagedRecordFailsAlone(t *testing.T) {
	s := openStore(t, Options{})
	bad, good := mustClaim(t, s, request("bad")), mustClaim(t, s, request("good"))
	if _, err := s.DB().Exec("UPDATE stet_records SET owner = x'00' WHERE fence = ?", bad.Fence); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), request("bad")); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("Claim: %v", err)
	}
	if _, err := s.Read(t.Context(), bad.ID); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("Read: %v", err)
	}
	mustSettle(t, s, good.Claim(), "done")
	if rec := mustRead(t, s, good.ID); rec.State != store.Completed {
		t.Errorf("the other: %+v", rec)
	}
}

func TestDamagedFileIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{}, path)
	for i := range 200 {
		rec := mustClaim(t, s, request(fmt.Sprint(i)))
		mustSettle(t, s, rec.Claim(), strings.Repeat("x", 1000))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for page := 4096; page < len(b); page += 4096 {
		copy(b[page:], "this is not a page of a b-tree")
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err = Open(t.Context(), path, Options{})
	if err == nil {
		defer s.Close()
		_, err = s.Claim(t.Context(), request("1"))
	}
	if err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v; want err != nil, strings.Contains(err.Error(), \"damaged\")", err)
	}
}

func TestFullDiskWritesNothingHalf(t *testing.T) {
	s := ledger(t, Options{})
	small := mustClaim(t, s, request("small"))
	big := mustClaim(t, s, request("big"))
	limit := func(pages int) { // a full disk, as SQLite sees it
		if _, err := s.writes.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
			t.Fatal(err)
		}
	}
	limit(1) // which SQLite raises to the pages there are
	huge := completed(strings.Repeat("x", 1<<20))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Settle(t.Context(), big.Claim(), huge, keep); err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("the big one: %v", err)
		}
	})
	wg.Go(func() { mustSettle(t, s, small.Claim(), "fits") })
	wg.Wait()
	if rec := mustRead(t, s, big.ID); rec.State != store.Running || !rec.Result.IsZero() {
		t.Errorf("the big one: %v, %d bytes", rec.State, len(rec.Result.Body))
	}
	_, err := s.RunTx(t.Context(), request("tx"), keep, func(ctx context.Context, tx *sql.Tx, r store.Record) (store.Settlement, error) {
		_, err := charge(ctx, tx, r)
		return huge, err
	})
	if err == nil || !strings.Contains(err.Error(), "disk is full") || charges(t, s) != 0 {
		t.Errorf("RunTx: %v, %d charges", err, charges(t, s))
	}
	limit(1 << 20)
	if err := s.Settle(t.Context(), big.Claim(), huge, keep); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestLockedFileIsReportedAsNotExecuted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{BusyTimeout: 20 * time.Millisecond}, path)
	tx, err := openStore(t, Options{}, path).DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), request("k")); err == nil || !strings.Contains(err.Error(), "nothing was done") || !strings.Contains(err.Error(), "BusyTimeout") {
		t.Errorf("Claim: %v", err)
	}
	if _, err := s.RunTx(t.Context(), request("k"), keep, never(t)); err == nil || !strings.Contains(err.Error(), "BusyTimeout") {
		t.Errorf("RunTx: %v", err)
	}
	if rec := mustRead(t, s, request("k").ID); rec.State != store.None { // and reading does not wait
		t.Errorf("%+v", rec)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	mustClaim(t, s, request("k"))
}

func TestReadOnlyFileIsReported(t *testing.T) {
	s := openStore(t, Options{})
	if _, err := s.writes.Exec("PRAGMA query_only = ON"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), request("k")); err == nil || !strings.Contains(err.Error(), "cannot be written") {
		t.Errorf("Claim: %v", err)
	}
}

func TestEveryConnectionIsDurable(t *testing.T) {
	s := openStore(t, Options{})
	for name, db := range map[string]*sql.DB{"the writer's": s.writes, "the readers'": s.reads, "the service's": s.DB()} {
		timeout := "5000"
		if db == s.writes {
			timeout = "0" // Store.begin polls the lock
		}
		for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal", "foreign_keys": "1", "busy_timeout": timeout} {
			var got string
			if err := db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s connection: %s = %s, %v; want %s", name, pragma, got, err, want)
			}
		}
	}
}
