package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// todo is what stet_begin returns.
type todo struct {
	Action      string
	Claim       *string
	State       *string
	Status      *int
	Headers     map[string][]string
	ContentType *string
	Body        []byte
	ID          []byte
	Fence       *int64
	Attempt     *int
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func sqlBegin(ctx context.Context, q querier, op stet.Op) (todo, error) {
	rows, err := q.Query(ctx, "SELECT * FROM stet.stet_begin($1, $2, $3)", op.Scope, op.Key, op.Fingerprint[:])
	if err != nil {
		return todo{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[todo])
}

// mustBegin begins, and wants that action.
func mustBegin(t testing.TB, q querier, op stet.Op, action string) todo {
	t.Helper()
	got, err := sqlBegin(t.Context(), q, op)
	if err != nil || got.Action != action {
		t.Fatalf("stet_begin of %s: %q, %v; want %q", op.Key, got.Action, err, action)
	}
	if (got.Claim != nil) != (action == "run") {
		t.Fatalf("stet_begin of %s: %q with the claim %v", op.Key, action, got.Claim)
	}
	return got
}

// mustCommit ends a transaction.
func mustCommit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// beginTx begins a transaction, which is rolled back at the end of the test.
func beginTx(t testing.TB, s *Store) pgx.Tx {
	t.Helper()
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// wantCode wants an error with that SQLSTATE.
func wantCode(t testing.TB, what string, err error, code string) {
	t.Helper()
	if sqlState(err) != code {
		t.Errorf("%s: %v; want SQLSTATE %s", what, err, code)
	}
}

// wantUnsettled wants the error of a commit without an outcome.
func wantUnsettled(t testing.TB, what string, err error) {
	t.Helper()
	wantCode(t, what, err, "23503")
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.ConstraintName != "stet_unsettled" {
		t.Errorf("%s: the constraint is %q; want stet_unsettled", what, e.ConstraintName)
	}
}

func opOf(key, body string) stet.Op {
	return stet.Op{Scope: "shop", Key: key, Fingerprint: stet.NewFingerprint([]byte(body))}
}

func TestFunctionsComputeTheVectorsOfGo(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	vectors := stettest.ReadVectors(t)
	want := func(what, want, sql string, args ...any) {
		t.Helper()
		var got string
		if err := s.Pool().QueryRow(t.Context(), sql, args...).Scan(&got); err != nil || got != want {
			t.Errorf("%.80s is %s, %v; want %s", what, got, err, want)
		}
	}
	for _, v := range vectors.Fingerprints {
		want("a fingerprint", v.Fingerprint, "SELECT encode(stet.stet_fingerprint($1, $2), 'hex')", [][]byte(v.Parts), v.Version)
	}
	for _, v := range vectors.IDs {
		want("the ID of "+v.Scope, v.ID, "SELECT encode(stet.stet_id($1, $2, $3), 'hex')", v.Scope, v.Key, v.Namespace)
	}
	for _, v := range vectors.Claims {
		want(v.Claim, v.ID+" "+v.Owner+" "+v.Fence, "SELECT encode(id, 'hex') || ' ' || encode(owner, 'hex') || ' ' || fence FROM stet.stet_claim($1)", v.Claim)
	}
	locks := s.locks(request("k").ID, request("k").Fingerprint)
	id := request("k").ID
	want("the key's lock", fmt.Sprint(locks.key), "SELECT stet.stet_number(stet.stet_own('run', ARRAY[$1::bytea]))::text", id[:])
	want("the waiters' lock", fmt.Sprint(locks.waiters), "SELECT (stet.stet_number(substr($1::bytea, 9)) # stet.stet_number(stet.stet_own('wait', '{}')))::text", id[:])
}

// role makes a role that may call the functions and nothing else, and returns a pool of
// its own.
func role(t *testing.T, pool *pgxpool.Pool, name string) *pgxpool.Pool {
	t.Helper()
	execSQL(t, pool, "CREATE ROLE "+name+" LOGIN")
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name, pgx.QueryExecModeSimpleProtocol)
	})
	execSQL(t, pool, "GRANT USAGE ON SCHEMA stet TO "+name)
	execSQL(t, pool, "GRANT EXECUTE ON FUNCTION stet.stet_begin, stet.stet_emit, stet.stet_settle, stet.stet_release TO "+name)
	return connect(t, strings.Replace(pool.Config().ConnString(), "postgres@", name+"@", 1))
}

// The program on the page runs, by psql, as the role that it makes.
func TestProgramOfThePageRuns(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(page), "```sql\n")
	program, _, _ = strings.Cut(program, "```")
	name := "shop_" + strings.ReplaceAll(fresh(), "-", "")
	once, each, ok := strings.Cut(strings.NewReplacer("TO shop", "TO "+name, "ROLE shop", "ROLE "+name).Replace(program), "-- each request")
	if !ok {
		t.Fatal("the page's first program has no part for each request")
	}
	url := rig.Postgres(t).Database(t)
	s := open(t, connect(t, url), Options{})
	psql := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url)
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("psql: %v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if out := psql(once); out != "" {
		t.Errorf("the first part prints %q", out)
	}
	t.Cleanup(func() { execSQL(t, s.Pool(), "DROP OWNED BY "+name); execSQL(t, s.Pool(), "DROP ROLE "+name) })
	for i, want := range []string{"run", "replay", "replay"} {
		if out := psql("--" + each); out != want {
			t.Errorf("time %d prints %q; want %q", i+1, out, want)
		}
	}
	out := psql("SET ROLE " + name + ";\n" + `BEGIN;
		SELECT claim FROM stet.stet_begin('acct_1', 'k-43') \gset
		SELECT stet.stet_release(:'claim') AS released \gset
		COMMIT;
		SELECT encode(stet.stet_id('acct_1', 'k1'), 'hex') AS id \gset
		SELECT count(*) AS n FROM payments \gset
		\echo :n :id`)
	if want := "1 " + store.Digest("", "acct_1", "k1").String(); out != want {
		t.Errorf("payments and ID: %q; want %q", out, want)
	}
	out = psql("GRANT EXECUTE ON FUNCTION stet.stet_emit TO " + name + "; SET ROLE " + name + ";\n" + `BEGIN;
		SELECT claim FROM stet.stet_begin('acct_1', 'k-44') \gset
		SELECT stet.stet_emit(:'claim', 'payments', '{"paid": 42}', 'acct_1', '{"content-type": "application/json"}') AS message \gset
		SELECT stet.stet_settle(:'claim', 201, NULL, 'text/plain', 'paid') AS settled \gset
		COMMIT;
		\echo :message`)
	all := left(t, stettest.Engine(t, s, stet.Options{SweepEvery: -1}))
	if len(all) != 1 || all[0].ID != out || all[0].To != "payments" || all[0].Key != "acct_1" || string(all[0].Body) != `{"paid": 42}` {
		t.Errorf("psql has emitted %q; sent are %+v", out, all)
	}
}

func TestServiceNeedsNoRightOnTheTables(t *testing.T) {
	t.Parallel()
	pool := database(t)
	open(t, pool, Options{})
	service := role(t, pool, "service_"+strings.ReplaceAll(fresh(), "-", ""))
	err := pgx.BeginFunc(t.Context(), service, func(tx pgx.Tx) error {
		got, err := sqlBegin(t.Context(), tx, opOf("k", ""))
		if err != nil {
			return err
		}
		_, err = tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 200)", got.Claim)
		return err
	})
	if err != nil {
		t.Fatalf("with EXECUTE alone: %v", err)
	}
	mustBegin(t, service, opOf("k", ""), "replay")
	for _, sql := range []string{
		"SELECT FROM stet.records", "UPDATE stet.records SET state = 4", "INSERT INTO stet.records (id) VALUES ('')", "SELECT nextval('stet.records_fence')",
		"SELECT stet.stet_tell('')", "SELECT FROM stet.operations",
	} {
		_, err := service.Exec(t.Context(), sql)
		wantCode(t, sql, err, codeForbidden)
	}
	// What the caller calls the same as what the functions call is not called by them.
	execSQL(t, pool, "CREATE SCHEMA evil; CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT ''evil''::bytea'; GRANT USAGE ON SCHEMA evil TO PUBLIC", pgx.QueryExecModeSimpleProtocol)
	tx, err := service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = evil, pg_catalog"); err != nil {
		t.Fatal(err)
	}
	if got := mustBegin(t, tx, opOf("k", ""), "replay"); !bytes.Equal(got.ID, idOf("k")) {
		t.Errorf("the ID is %x; want %x", got.ID, idOf("k"))
	}
}

func idOf(key string) []byte {
	id := store.Digest("", "shop", key)
	return id[:]
}

// badCall is a call that is refused with that code.
type badCall struct {
	code, sql string
	args      []any
}

// shown is the call for a person, with long values shortened.
func (c badCall) shown() string {
	var b strings.Builder
	b.WriteString(c.sql)
	for _, arg := range c.args {
		if long, ok := arg.([]byte); ok {
			arg = fmt.Sprint(len(long), " bytes")
		}
		fmt.Fprintf(&b, " %.200v", arg)
	}
	return b.String()
}

// badCalls are all that can be wrong with a call; mine is a claim that can be settled.
func badCalls(mine, forged, foreign, old, settled store.Claim) []badCall {
	long := strings.Repeat("x", 10_000)
	return []badCall{
		{"ST001", "SELECT stet.stet_begin($1, 'k')", []any{long}},
		{"ST001", "SELECT stet.stet_begin('s', $1)", []any{long}},
		{"ST001", "SELECT stet.stet_begin('', 'k')", nil},
		{"ST001", "SELECT stet.stet_begin('s', '')", nil},
		{"ST001", "SELECT stet.stet_begin(NULL, 'k')", nil},
		{"ST001", "SELECT stet.stet_begin('s', NULL)", nil},
		{"ST001", "SELECT stet.stet_begin('s', 'k', $1)", []any{[]byte("short")}},
		{"ST001", "SELECT stet.stet_begin('s', 'k', $1)", []any{make([]byte, 34)}},
		{"ST001", "SELECT stet.stet_begin('s', 'k', namespace => $1)", []any{long}},
		{"ST001", "SELECT stet.stet_begin('s', 'k', namespace => NULL)", nil},
		{"ST001", "SELECT stet.stet_begin('s', 'k', name => $1)", []any{long}},
		{"ST001", "SELECT stet.stet_begin('s', 'k', class => $1)", []any{"a\nb"}},
		{"ST001", "SELECT stet.stet_begin('s', 'k', ref => NULL)", nil},
		{"ST001", "SELECT stet.stet_fingerprint(NULL)", nil},
		{"ST001", "SELECT stet.stet_fingerprint(ARRAY[NULL]::bytea[])", nil},
		{"ST001", "SELECT stet.stet_fingerprint('{}', 3)", nil},
		{"ST001", "SELECT stet.stet_settle('claim', 200)", nil},
		{"ST001", "SELECT stet.stet_settle(NULL, 200)", nil},
		{"ST001", "SELECT stet.stet_settle($1, 200)", []any{mine.String() + "0"}},
		{"ST002", "SELECT stet.stet_settle($1, 200)", []any{forged.String()}},
		{"ST002", "SELECT stet.stet_settle($1, 200)", []any{foreign.String()}},
		{"ST002", "SELECT stet.stet_settle($1, 200)", []any{old.String()}},
		{"ST002", "SELECT stet.stet_settle($1, 200)", []any{settled.String()}},
		{"ST002", "SELECT stet.stet_release($1)", []any{forged.String()}},
		{"ST002", "SELECT stet.stet_release($1)", []any{settled.String()}},
		{"ST001", "SELECT stet.stet_release($1, NULL)", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 42)", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 0)", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 1000)", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 200, '[]')", []any{mine.String()}},
		{"ST001", `SELECT stet.stet_settle($1, 200, '{"A B": "x"}')`, []any{mine.String()}},
		{"ST001", `SELECT stet.stet_settle($1, 200, '{"": "x"}')`, []any{mine.String()}},
		{"ST001", `SELECT stet.stet_settle($1, 200, '{"A": "x\r\ny"}')`, []any{mine.String()}},
		{"ST001", `SELECT stet.stet_settle($1, 200, '{"A": 1}')`, []any{mine.String()}},
		{"ST001", `SELECT stet.stet_settle($1, 200, '{"A": [["x"]]}')`, []any{mine.String()}},
		{"ST001", `SELECT stet.stet_settle($1, 200, '{"a": "x", "A": "y"}')`, []any{mine.String()}},
		{"ST001", `SELECT stet.stet_settle($1, 200, '{"content-type": "x"}')`, []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 200, jsonb_build_object('A', (SELECT jsonb_agg(''::text) FROM generate_series(1, 5000))))", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 200, content_type => $2)", []any{mine.String(), long}},
		{"ST001", "SELECT stet.stet_settle($1, 200, content_type => $2)", []any{mine.String(), "a\r\nb"}},
		{"ST001", "SELECT stet.stet_settle($1, 200, body => $2)", []any{mine.String(), make([]byte, 1<<20+1)}},
		{"ST001", "SELECT stet.stet_settle($1, 200, max_result => 67108865)", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 200, max_result => NULL)", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 200, gone => NULL)", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 200, result => '-1 day')", []any{mine.String()}},
		{"ST001", "SELECT stet.stet_settle($1, 200, tombstone => '1 hour')", []any{mine.String()}},
	}
}

func TestBadArgumentsWriteNothing(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	mine := mustClaim(t, s, request("mine")).Claim()
	settled := mustClaim(t, s, request("settled")).Claim()
	mustSettle(t, s, settled, "x")
	forged, foreign, old := mine, mine, mine
	forged.Owner, foreign.ID, old.Fence = store.NewOwner(), request("settled").ID, mine.Fence-1
	for _, c := range badCalls(mine, forged, foreign, old, settled) {
		_, err := s.Pool().Exec(t.Context(), c.sql, c.args...)
		wantCode(t, c.shown(), err, c.code)
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && !strings.HasPrefix(e.Message, "stet: ") {
			t.Errorf("%s: the message is %q", c.sql, e.Message)
		}
	}
	if rec := mustRead(t, s, mine.ID); rec.State != store.Running || rec.Claim() != mine {
		t.Errorf("the claim's record is %+v", rec)
	}
	if rec := mustRead(t, s, settled.ID); rec.State != store.Completed || string(rec.Result.Body) != "x" {
		t.Errorf("the settled record is %+v", rec)
	}
	var n int
	if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM stet.records").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d records, %v; want 2", n, err)
	}
}

// A transaction that forgets to settle would be run again.
func TestTransactionThatForgetsToSettleCommitsNothing(t *testing.T) {
	t.Parallel()
	s := ledger(t, Options{})
	tx := beginTx(t, s)
	mustBegin(t, tx, opOf("k", ""), "run")
	if _, err := tx.Exec(t.Context(), "INSERT INTO charges VALUES ('k')"); err != nil {
		t.Fatal(err)
	}
	wantUnsettled(t, "COMMIT without an outcome", tx.Commit(t.Context()))
	_, err := sqlBegin(t.Context(), s.Pool(), opOf("k", "")) // its own transaction
	wantUnsettled(t, "stet_begin outside of a transaction", err)
	if n := charges(t, s); n != 0 || mustRead(t, s, store.ID(idOf("k"))).State != store.None {
		t.Errorf("%d charges and a record; want nothing", n)
	}
	// A savepoint that is rolled back takes the operation with it.
	tx = beginTx(t, s)
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	begun := mustBegin(t, inner, opOf("k", ""), "run")
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	inner, err = tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = inner.Exec(t.Context(), "SELECT stet.stet_settle($1)", begun.Claim)
	wantCode(t, "the claim of a savepoint that was rolled back", err, "ST002")
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
}

// The record goes through its states, each of which SQL tells.
func TestEachStateIsReturned(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, opOf("k", "a"), "run")
	if *begun.Attempt != 1 || *begun.Fence <= 0 || !bytes.Equal(begun.ID, idOf("k")) {
		t.Errorf("begun: %+v", begun)
	}
	mustBegin(t, tx, opOf("k", "a"), "in_flight") // itself
	mustBegin(t, s.Pool(), opOf("k", "a"), "in_flight")
	mustBegin(t, s.Pool(), opOf("k", "b"), "mismatch")
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_release($1)", begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	mustBegin(t, s.Pool(), opOf("k", "b"), "mismatch")
	tx = beginTx(t, s)
	again := mustBegin(t, tx, opOf("k", "a"), "run")
	if *again.Attempt != 2 || *again.Fence <= *begun.Fence {
		t.Errorf("begun again: attempt %d, fence %d after %d", *again.Attempt, *again.Fence, *begun.Fence)
	}
	headers := `{"location": "/p/7", "Vary": ["a", "b"]}`
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 201, $2::jsonb, 'text/plain', $3)", again.Claim, headers, []byte("\x00\xff")); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	got := mustBegin(t, s.Pool(), opOf("k", "a"), "replay")
	if *got.State != "completed" || *got.Status != 201 || *got.ContentType != "text/plain" || !bytes.Equal(got.Body, []byte("\x00\xff")) ||
		fmt.Sprint(got.Headers) != "map[Location:[/p/7] Vary:[a b]]" || *got.Fence != *again.Fence || *got.Attempt != 2 {
		t.Errorf("replayed: %+v", got)
	}
	mustBegin(t, s.Pool(), opOf("k", "b"), "mismatch")
	execSQL(t, s.Pool(), "UPDATE stet.records SET expires_at = now()")
	if got := mustBegin(t, s.Pool(), opOf("k", "a"), "expired"); *got.State != "completed" || got.Body != nil {
		t.Errorf("expired: %+v", got)
	}
	execSQL(t, s.Pool(), "UPDATE stet.records SET forget_at = now()")
	tx = beginTx(t, s)
	if forgotten := mustBegin(t, tx, opOf("k", "b"), "run"); *forgotten.Attempt != 1 || *forgotten.Fence <= *again.Fence {
		t.Errorf("begun when it was forgotten: attempt %d, fence %d", *forgotten.Attempt, *forgotten.Fence)
	} else if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 503, gone => true)", forgotten.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if got := mustBegin(t, s.Pool(), opOf("k", "b"), "expired"); *got.State != "failed" {
		t.Errorf("settled without a result: %+v", got)
	}
}
