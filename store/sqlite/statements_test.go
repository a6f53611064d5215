package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

// thePage is docs/sql-sqlite.md, whose statements are tested here as they are there.
func thePage(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(stettest.ModuleRoot(t), "docs", "sql-sqlite.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// statementsOf are the statements of the page, by the names in their first lines.
func statementsOf(t testing.TB, page string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, block := range regexp.MustCompile("(?s)```sql\n-- ([a-z ]+)\n(.*?)```").FindAllStringSubmatch(page, -1) {
		all[block[1]] = block[2]
	}
	for _, name := range []string{"connect", "version", "begin", "look", "settle", "release", "sweep dead", "sweep expired", "sweep forgotten"} {
		if all[name] == "" {
			t.Fatalf("docs/sql-sqlite.md has no statement called %q", name)
		}
	}
	return all
}

// byStatements is a store whose transactions are the statements of the page, and whose
// records are settled, released and swept by them. There are none for leases, which are
// the Store's, and so is reading: Go reads the written records.
type byStatements struct {
	store *Store
	clock func() time.Time
	sql   map[string]string
}

func newByStatements(t testing.TB, o Options) *byStatements {
	return &byStatements{store: openStore(t, o), clock: o.Clock, sql: statementsOf(t, thePage(t))}
}

func (b *byStatements) now() micros { return b.clock().UnixMicro() }

func (b *byStatements) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return b.store.Claim(ctx, req)
}

func (b *byStatements) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	return b.store.Extend(ctx, claims, lease)
}

func (b *byStatements) Read(ctx context.Context, id store.ID) (store.Record, error) {
	return b.store.Read(ctx, id)
}

// execer is the service's pool, or a transaction of it.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// one has the statement change one row.
func (b *byStatements) one(ctx context.Context, on execer, statement string, args ...any) error {
	res, err := on.ExecContext(ctx, b.sql[statement], args...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n != 0 || err != nil {
		return err
	}
	return store.ErrFenced
}

func (b *byStatements) settle(ctx context.Context, on execer, c store.Claim, out store.Settlement, keep store.Retention) error {
	if !out.State.Settled() {
		return fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	now := b.now()
	r := out.Result
	var status, media, head any
	if r.Status != 0 {
		status = r.Status
	}
	if r.Type != "" {
		media = r.Type
	}
	if len(r.Head) > 0 {
		head = r.Head
	}
	return b.one(ctx, on, "settle", sql.Named("fence", c.Fence), sql.Named("id", c.ID[:]), sql.Named("owner", c.Owner[:]), sql.Named("now", now),
		sql.Named("failed", out.State == store.Failed), sql.Named("gone", out.Gone), sql.Named("status", status), sql.Named("content_type", media),
		sql.Named("head", head), sql.Named("body", r.Body), sql.Named("expires", now+span(keep.Result)), sql.Named("forget", now+span(keep.Tombstone)))
}

// Settle is settle by itself, which refuses a repetition. Whether it is one the record says.
func (b *byStatements) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return b.orBefore(ctx, c, b.settle(ctx, b.store.DB(), c, out, keep), func(rec store.Record) bool {
		return rec.State == out.State && b.clock().Before(rec.ExpiresAt) && rec.Gone == out.Gone && (out.Gone || rec.Result.Equal(out.Result))
	})
}

// Release is release by itself, which refuses a repetition.
func (b *byStatements) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	now := b.now()
	err := b.one(ctx, b.store.DB(), "release", sql.Named("fence", c.Fence), sql.Named("id", c.ID[:]), sql.Named("owner", c.Owner[:]),
		sql.Named("now", now), sql.Named("forget", now+span(keep.Result)))
	return b.orBefore(ctx, c, err, func(rec store.Record) bool { return rec.State == store.Retryable })
}

// orBefore takes a refusal for a success if the record is as it should be afterwards.
func (b *byStatements) orBefore(ctx context.Context, c store.Claim, err error, done func(store.Record) bool) error {
	if !errors.Is(err, store.ErrFenced) {
		return err
	}
	rec, readErr := b.Read(ctx, c.ID)
	if readErr != nil || rec.Fence == c.Fence && done(rec) {
		return readErr
	}
	return err
}

// SettleTx is settle in the caller's transaction.
func (b *byStatements) SettleTx(ctx context.Context, tx *sql.Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return b.settle(ctx, tx, c, out, keep)
}

// found is what look returns.
type found struct {
	action, state  string
	result         store.Result
	fence, attempt int64
}

// look returns nil where there is nothing.
func (b *byStatements) look(ctx context.Context, on execer, req *store.ClaimRequest, now micros) (*found, error) {
	var f found
	var state, media sql.NullString
	var status sql.NullInt64
	err := on.QueryRowContext(ctx, b.sql["look"], sql.Named("id", req.ID[:]), sql.Named("fingerprint", req.Fingerprint[:]), sql.Named("now", now)).
		Scan(&f.action, &state, &status, &media, &f.result.Head, &f.result.Body, &f.fence, &f.attempt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	f.state, f.result.Status, f.result.Type = state.String, int(status.Int64), media.String
	return &f, err
}

// RunTx is begin, fn, settle; before them it reads for a settled record, which waits for no
// writer. Begin finds all other states.
func (b *byStatements) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (rec store.Record, err error) {
	if f, err := b.look(ctx, b.store.DB(), &req, b.now()); err != nil || f != nil && (f.state == "completed" || f.state == "failed") {
		return b.stored(ctx, f, &req, err)
	}
	tx, err := b.store.DB().BeginTx(context.WithoutCancel(ctx), nil) // BEGIN IMMEDIATE
	if err != nil {
		return rec, err
	}
	defer func() { _ = tx.Rollback() }()
	now := b.now()
	rec = store.Record{ID: req.ID, Scope: req.Scope, Label: req.Label, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner,
		LeaseLeft: req.Lease, ClaimedAt: time.UnixMicro(now)}
	err = tx.QueryRowContext(ctx, b.sql["begin"], sql.Named("id", req.ID[:]), sql.Named("scope", req.Scope[:]), sql.Named("fingerprint", req.Fingerprint[:]),
		sql.Named("owner", req.Owner[:]), sql.Named("now", now), sql.Named("lease", now+span(req.Lease)),
		sql.Named("class", req.Label.Class), sql.Named("name", req.Label.Name), sql.Named("ref", req.Label.Ref)).Scan(&rec.Fence, &rec.Attempt)
	if errors.Is(err, sql.ErrNoRows) {
		f, err := b.look(ctx, tx, &req, now)
		if err == nil && (f == nil || f.action == "run") {
			err = fmt.Errorf("begin refused to run it, and look says %+v", f)
		}
		return b.stored(ctx, f, &req, errors.Join(err, tx.Rollback()))
	}
	if err != nil {
		return rec, err
	}
	out, err := fn(ctx, tx, rec)
	if err != nil {
		return rec, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := b.settle(ctx, tx, rec.Claim(), out, keep); err != nil {
		return rec, err
	}
	if err := tx.Commit(); err != nil {
		return rec, err
	}
	return b.Read(ctx, req.ID)
}

// stored answers for an operation that must not run, with the result of look; the rest
// is read.
func (b *byStatements) stored(ctx context.Context, f *found, req *store.ClaimRequest, err error) (store.Record, error) {
	switch {
	case err != nil:
		return store.Record{}, err
	case f.action == "mismatch":
		return store.Record{}, store.ErrMismatch
	case f.action == "unknown": // the statements do not mark it unknown
		return b.Claim(ctx, *req)
	}
	rec, err := b.Read(ctx, req.ID)
	rec.Fence, rec.Attempt, rec.Gone, rec.Result = f.fence, int(f.attempt), f.action == "expired", store.Result{}
	if f.action == "replay" {
		rec.Result = f.result
	}
	if err == nil && f.state != rec.State.String() {
		err = fmt.Errorf("look says %s, of a record that is %v", f.state, rec.State)
	}
	return rec, err
}

// Sweep is the three statements.
func (b *byStatements) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	if limit < 1 {
		return swept, ctx.Err()
	}
	for name, count := range map[string]*int{"sweep dead": &swept.MarkedUnknown, "sweep expired": &swept.Expired, "sweep forgotten": &swept.Purged} {
		res, err := b.store.DB().ExecContext(ctx, b.sql[name], sql.Named("now", b.now()), sql.Named("most", limit))
		if err != nil {
			return swept, err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return swept, err
		}
		*count, swept.More = int(n), swept.More || int(n) == limit
	}
	return swept, nil
}

// byStatementsHarness is that of transactions of the service's own connection.
func byStatementsHarness(clock *fakeClock) storetest.TxHarness[*sql.Tx] {
	return storetest.TxHarness[*sql.Tx]{
		Harness: storetest.Harness{
			New: func(t testing.TB) store.Store {
				b := newByStatements(t, Options{Clock: clock.Now})
				if _, err := b.store.DB().Exec("CREATE TABLE effects (name TEXT)"); err != nil {
					t.Fatal(err)
				}
				return b
			},
			Advance:   func(_ testing.TB, d time.Duration) { clock.Advance(d) },
			Histories: 20,
		},
		Write: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", name)
			return err
		},
		Rows: func(t testing.TB, s store.TxStore[*sql.Tx], name string) (n int) {
			if err := s.(*byStatements).store.DB().QueryRow("SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		Begin: func(t testing.TB, s store.TxStore[*sql.Tx]) (*sql.Tx, func(bool) error) {
			tx, err := s.(*byStatements).store.DB().Begin()
			if err != nil {
				t.Fatal(err)
			}
			return tx, func(commit bool) error {
				if commit {
					return tx.Commit()
				}
				return tx.Rollback()
			}
		},
		OneWriter: true,
	}
}

func TestStatementsOfThePageKeepTheContract(t *testing.T) {
	t.Parallel()
	h := byStatementsHarness(newClock())
	t.Run("store", func(t *testing.T) { storetest.Run(t, h.Harness) })
	t.Run("transactions", func(t *testing.T) { storetest.RunTx(t, h) })
}

// rowsOf are all records, as they are kept.
func rowsOf(t *testing.T, s *Store) string {
	t.Helper()
	var all strings.Builder
	rows, err := s.DB().Query("SELECT * FROM stet_records ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		values, into := make([]any, len(names)), make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			fmt.Fprintf(&all, "%s=%v ", name, values[i])
		}
		all.WriteString("\n")
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func mustExec(t *testing.T, s *Store, query string, args ...any) {
	t.Helper()
	if _, err := s.DB().Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// The statements leave the same records as Go's sweep, also of accepted operations and records with
// messages to send.
func TestSweepOfTheStatementsIsThatOfGo(t *testing.T) {
	clock := newClock()
	b := newByStatements(t, Options{Clock: clock.Now})
	s := b.store
	for key, set := range map[string]string{
		"settled": "state = 2, settled = 1, lease = NULL, expires = 5, forget = :now + 9, due = 5, body = x'78'", "failed": "state = 3, settled = 1, lease = NULL, expires = 5, forget = :now + 9, due = 5",
		"forgotten": "state = 2, settled = 1, lease = NULL, expires = 5, forget = 6, due = 5", "gone": "state = 2, settled = 1, lease = NULL, gone = 1, expires = 5, forget = :now, due = :now",
		"released": "state = 4, settled = 1, lease = NULL, forget = 6, due = 6", "dead": "lease = :now, due = :now", "repeatable": "lease = 5, due = 5, run_due = 5, work = x'77'",
		"unknown": "state = 5, settled = 1, lease = NULL, due = NULL", "alive": "lease = :now + 1, due = :now + 1", "fresh": "state = 2, settled = 1, lease = NULL, expires = :now + 1, forget = :now + 2, due = :now + 1",
		"outbox": "state = 2, settled = 1, lease = NULL, expires = 5, due = 5, work = x'77', relay_due = 5, body = x'78'",
	} {
		id := mustClaim(t, s, request(key)).ID
		mustExec(t, s, "UPDATE stet_records SET "+set+" WHERE id = :id", sql.Named("id", id[:]), sql.Named("now", b.now()))
	}
	mustExec(t, s, "CREATE TABLE before AS SELECT * FROM stet_records")
	want, err := s.Sweep(t.Context(), 100)
	if err != nil || want != (store.Swept{MarkedUnknown: 1, Expired: 3, Purged: 3}) {
		t.Fatalf("Go's sweep: %+v, %v", want, err)
	}
	rows := rowsOf(t, s)
	mustExec(t, s, "DELETE FROM stet_records; INSERT INTO stet_records SELECT * FROM before")
	got, err := b.Sweep(t.Context(), 100)
	want.MarkedUnknown++ // Go does not count a record that runs again
	if err != nil || got != want {
		t.Errorf("the statements: %+v, %v; want %+v", got, err, want)
	}
	if now := rowsOf(t, s); now != rows {
		t.Errorf("the statements have left\n%s\nwant\n%s", now, rows)
	}
}

func TestAcceptedOperationThatTheStatementsReleaseIsAcceptedAgain(t *testing.T) {
	b := newByStatements(t, Options{Clock: newClock().Now})
	mustAccept(t, b.store, request("work"), "w")
	taken := mustTake(t, b.store, request("work").ID)
	if err := b.Release(t.Context(), taken.Claim(), keep); err != nil {
		t.Fatal(err)
	}
	again := mustTake(t, b.store, request("work").ID)
	if string(again.Work) != "w" || again.Fence <= taken.Fence {
		t.Errorf("taken again: %+v; want its work, and a fence above %d", again, taken.Fence)
	}
}
