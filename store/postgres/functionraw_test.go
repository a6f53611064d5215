package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

const day = 86400.0

// rawBegin are the arguments of stet_begin_raw, as a client computes them.
func rawBegin(s *Store, op stet.Op) []any {
	id, scope, owner := store.Digest("", op.Scope, op.Key), store.DigestScope("", op.Scope), store.NewOwner()
	l := s.locks(id, op.Fingerprint)
	return []any{id[:], scope[:], op.Fingerprint[:], owner[:], l.key, l.id, l.finger, "", "", "", day}
}

// rawSettle are the arguments of stet_settle_raw for the result "paid".
func rawSettle(s *Store, c store.Claim) []any {
	return []any{c.ID[:], c.Owner[:], c.Fence, s.waitersLock(c.ID), 200, "text/plain", []byte("\x03{\"A\": [\"b\"]}"), []byte("paid"), false, false, day, 30 * day}
}

const (
	sqlBeginRaw  = "SELECT action, fence, attempt, state, status, content_type, head, body FROM stet.stet_begin_raw($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
	sqlSettleRaw = "SELECT stet.stet_settle_raw($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
)

// begunRaw is what stet_begin_raw returns.
type begunRaw struct {
	Action      string
	Fence       *int64
	Attempt     *int
	State       *string
	Status      *int
	ContentType *string
	Head, Body  []byte
}

// claim is that of an operation that args have begun.
func (b begunRaw) claim(args []any) store.Claim {
	return store.Claim{ID: store.ID(args[0].([]byte)), Owner: store.Owner(args[3].([]byte)), Fence: *b.Fence}
}

func beginRaw(ctx context.Context, q querier, args []any) (begunRaw, error) {
	rows, err := q.Query(ctx, sqlBeginRaw, args...)
	if err != nil {
		return begunRaw{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[begunRaw])
}

// mustBeginRaw begins, and wants that action.
func mustBeginRaw(t testing.TB, q querier, args []any, action string) begunRaw {
	t.Helper()
	got, err := beginRaw(t.Context(), q, args)
	if err != nil || got.Action != action {
		t.Fatalf("stet_begin_raw: %q, %v; want %q", got.Action, err, action)
	}
	return got
}

// The functions for clients and those for psql have the same results, and write the same rows.
func TestRawFunctionsAgreeWithThoseForPsql(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	op, other := opOf("raw", "a"), opOf("raw", "b")
	tx := beginTx(t, s)
	args := rawBegin(s, op)
	begun := mustBeginRaw(t, tx, args, "run")
	if *begun.Attempt != 1 || *begun.State != "running" {
		t.Errorf("begun: %+v", begun)
	}
	// Each sees the lock of the other.
	mustBeginRaw(t, tx, rawBegin(s, op), "in_flight")
	mustBegin(t, s.Pool(), op, "in_flight")
	mustBegin(t, s.Pool(), other, "mismatch")
	inner := beginTx(t, s)
	psql := mustBegin(t, inner, opOf("psql", "a"), "run")
	mustBeginRaw(t, s.Pool(), rawBegin(s, opOf("psql", "a")), "in_flight")
	mustBeginRaw(t, s.Pool(), rawBegin(s, opOf("psql", "b")), "mismatch")
	if _, err := tx.Exec(t.Context(), sqlSettleRaw, rawSettle(s, begun.claim(args))...); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if _, err := inner.Exec(t.Context(), `SELECT stet.stet_settle($1, 200, '{"a": "b"}', 'text/plain', 'paid')`, psql.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, inner)
	// Each replays what the other has settled.
	if got := mustBegin(t, s.Pool(), op, "replay"); string(got.Body) != "paid" || got.Headers["A"][0] != "b" || *got.ContentType != "text/plain" || *got.Status != 200 {
		t.Errorf("replayed: %+v", got)
	}
	got := mustBeginRaw(t, s.Pool(), rawBegin(s, opOf("psql", "a")), "replay")
	if string(got.Body) != "paid" || string(got.Head) != "\x03{\"A\": [\"b\"]}" || *got.ContentType != "text/plain" || *got.Status != 200 || *got.State != "completed" {
		t.Errorf("replayed: %+v", got)
	}
	mustBeginRaw(t, s.Pool(), rawBegin(s, other), "mismatch")
	var rows int
	err := s.Pool().QueryRow(t.Context(), `SELECT count(DISTINCT to_jsonb(r) - '{id,owner,fence,claimed_at,settled_at,expires_at,forget_at,due_at}'::text[]) + count(*) FILTER (WHERE
			expires_at <> claimed_at + interval '24 hours' OR due_at <> expires_at OR forget_at <> settled_at + interval '720 hours' OR unsettled IS NOT NULL OR open_state IS NOT NULL)
		FROM stet.records r`).Scan(&rows)
	if err != nil || rows != 1 {
		t.Errorf("the two rows differ, or have other times: %d, %v", rows, err)
	}
	execSQL(t, s.Pool(), "UPDATE stet.records SET expires_at = now()")
	if got := mustBeginRaw(t, s.Pool(), rawBegin(s, op), "expired"); got.Body != nil {
		t.Errorf("an expired result has the body %q", got.Body)
	}
}

// The result expires at a time that begin has written, so a settle changes no index.
func TestSettleChangesNoIndex(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	const n = 2000
	execSQL(t, s.Pool(), fmt.Sprintf("SELECT stet.stet_settle(b.claim, 200, body => 'paid') FROM generate_series(1, %d) n, LATERAL stet.stet_begin('shop', 'k' || n) b", n))
	var updates, hot int
	eventually(t, "the statistics are there", func() bool {
		err := s.Pool().QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'records'").Scan(&updates, &hot)
		return err == nil && updates > 0
	})
	if updates != n || hot < n*95/100 {
		t.Errorf("%d updates, and %d of them change no index; want %d, and 95 %% of them", updates, hot, n)
	}
}

// A client that computes other lock numbers waits at the primary key. It cannot run an operation
// a second time.
// wrongLocks are arguments of stet_begin_raw with the locks of another key.
func wrongLocks(s *Store, op stet.Op) []any {
	args := rawBegin(s, op)
	args[4], args[5], args[6] = args[4].(int64)+1, int32(1), int32(2)
	return args
}

func TestWrongLocksCannotRunAnOperationTwice(t *testing.T) {
	t.Parallel()
	s := ledger(t, Options{})
	for _, tc := range []struct {
		name, body, want string
		commit           bool
	}{{"a", "mine", "replay", true}, {"b", "mine", "run", false}, {"c", "another", "mismatch", true}} {
		first, args := beginTx(t, s), rawBegin(s, opOf(tc.name, "mine"))
		claim := mustBeginRaw(t, first, args, "run").claim(args)
		answer := make(chan string, 1)
		second := beginTx(t, s)
		go func() {
			got, err := beginRaw(context.Background(), second, wrongLocks(s, opOf(tc.name, tc.body)))
			if err != nil {
				got.Action = err.Error()
			}
			answer <- got.Action
		}()
		select {
		case got := <-answer:
			t.Errorf("%s: %q at once; want it to wait", tc.name, got)
		case <-time.After(200 * time.Millisecond):
		}
		if tc.commit {
			if _, err := first.Exec(t.Context(), sqlSettleRaw, rawSettle(s, claim)...); err != nil {
				t.Fatal(err)
			}
			mustCommit(t, first)
		} else if err := first.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-answer; got != tc.want {
			t.Errorf("%s: %q; want %q", tc.name, got, tc.want)
		}
		if err := second.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A transaction of Go has no row before its end.
func TestWrongLocksCannotRunAnOperationTwiceBesideGo(t *testing.T) {
	t.Parallel()
	s := ledger(t, Options{})
	te, err := stet.WithTx(stettest.Engine(t, s, stet.Options{SweepEvery: -1}), s)
	if err != nil {
		t.Fatal(err)
	}
	tx, args := beginTx(t, s), wrongLocks(s, opOf("go", ""))
	claim := mustBeginRaw(t, tx, args, "run").claim(args)
	if _, err := tx.Exec(t.Context(), "INSERT INTO charges VALUES ('sql')"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sqlSettleRaw, rawSettle(s, claim)...); err != nil {
		t.Fatal(err)
	}
	ran, done := make(chan bool, 8), make(chan error, 1)
	go func() {
		_, err := stet.DoTx(context.Background(), te, opOf("go", ""), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, "INSERT INTO charges VALUES ('go')")
			ran <- true
			return nil, err
		})
		done <- err
	}()
	<-ran
	mustCommit(t, tx)
	<-done
	if n := charges(t, s); n != 1 {
		t.Errorf("%d charges; want 1", n)
	}
}

// badRaw are wrong values of the arguments of stet_begin_raw and stet_settle_raw, by their numbers.
var badRaw = map[string]map[int][]any{
	sqlBeginRaw: {
		1: {nil, []byte{}, make([]byte, 31), make([]byte, 33)}, 2: {nil, make([]byte, 31), make([]byte, 32)}, 3: {nil, make([]byte, 32), make([]byte, 34)}, 4: {nil, make([]byte, 15), make([]byte, 17)},
		5: {nil}, 6: {nil}, 7: {nil}, 8: {nil, strings.Repeat("x", 256), "a\nb"}, 9: {nil, strings.Repeat("x", 256), "a\x7f"}, 10: {nil, strings.Repeat("x", 256), "\x01", "sealed:x"},
		11: {nil, 0.0, -1.0, 3155760001.0, "NaN", "Infinity", "-Infinity"},
	},
	sqlSettleRaw: {
		4: {nil}, 5: {0, 199, 1000, -1}, 6: {strings.Repeat("x", 256), "a\r\nb", "\x7f"}, 7: {[]byte{}, []byte("{}"), []byte("\x01{}"), []byte("\x02{}")}, 8: {make([]byte, 64<<20+1)},
		9: {nil}, 10: {nil}, 11: {nil, 0.0, -1.0, "NaN", "Infinity", 31 * day}, 12: {nil, 0.0, 3155760001.0, "NaN", "Infinity"},
	},
}

func TestRawFunctionsRefuseWrongArguments(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	mine := mustClaim(t, s, request("mine")).Claim()
	for sql, bad := range badRaw {
		for n, values := range bad {
			for _, value := range values {
				args := rawBegin(s, opOf("k", ""))
				if sql == sqlSettleRaw {
					args = rawSettle(s, mine)
				}
				args[n-1] = value
				typed := sql
				if _, ok := value.(string); ok && (sql == sqlBeginRaw && n == 11 || sql == sqlSettleRaw && n > 10) {
					typed = strings.Replace(sql, fmt.Sprintf("$%d", n), fmt.Sprintf("$%d::text::double precision", n), 1)
				}
				_, err := s.Pool().Exec(t.Context(), typed, args...)
				wantCode(t, badCall{"", fmt.Sprintf("argument %d of %.60s", n, sql), []any{value}}.shown(), err, "ST001")
			}
		}
	}
	for n := range 2 { // the right beginning, and the wrong length
		args := rawBegin(s, opOf("k", ""))
		whole := args[n].([]byte)
		for _, bad := range [][]byte{whole[:31], append(whole[:32:32], 0)} {
			args[n] = bad
			_, err := s.Pool().Exec(t.Context(), sqlBeginRaw, args...)
			wantCode(t, fmt.Sprintf("argument %d with %d bytes", n+1, len(bad)), err, "ST001")
		}
	}
	settled := mustClaim(t, s, request("settled")).Claim()
	mustSettle(t, s, settled, "x")
	forged, foreign, old := mine, mine, mine
	forged.Owner, foreign.ID, old.Fence = store.NewOwner(), request("settled").ID, mine.Fence-1
	for what, c := range map[string]store.Claim{"forged": forged, "foreign": foreign, "old": old, "settled": settled} {
		_, err := s.Pool().Exec(t.Context(), sqlSettleRaw, rawSettle(s, c)...)
		wantCode(t, what, err, "ST002")
	}
	for n := range 3 {
		args := rawSettle(s, mine)
		args[n] = nil
		_, err := s.Pool().Exec(t.Context(), sqlSettleRaw, args...)
		wantCode(t, fmt.Sprintf("no argument %d", n+1), err, "ST002")
	}
	if rec := mustRead(t, s, mine.ID); rec.State != store.Running || rec.Claim() != mine {
		t.Errorf("the claim's record is %+v", rec)
	}
	if rec := mustRead(t, s, settled.ID); string(rec.Result.Body) != "x" {
		t.Errorf("the settled record is %+v", rec)
	}
	if rec := mustRead(t, s, store.ID(idOf("k"))); rec.State != store.None {
		t.Errorf("a refused begin has written %+v", rec)
	}
}

// No role but a superuser can turn off the check of a commit.
func TestServiceCannotCommitWithoutAnOutcome(t *testing.T) {
	t.Parallel()
	pool := database(t)
	open(t, pool, Options{})
	service := role(t, pool, "service_"+strings.ReplaceAll(fresh(), "-", ""))
	for _, sql := range []string{
		"SET session_replication_role = replica", "ALTER TABLE stet.records DISABLE TRIGGER ALL", "ALTER TABLE stet.records DROP CONSTRAINT stet_unsettled",
		"INSERT INTO stet.records_empty VALUES (true)", "UPDATE stet.records SET unsettled = NULL", "DELETE FROM stet.records",
	} {
		_, err := service.Exec(t.Context(), sql)
		wantCode(t, sql, err, codeForbidden)
	}
	for _, value := range []string{"true", "false"} { // not even the owner
		_, err := pool.Exec(t.Context(), "INSERT INTO stet.records_empty VALUES ("+value+")")
		wantCode(t, value, err, "23514")
	}
	tx, err := service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	mustBegin(t, tx, opOf("k", ""), "run")
	if _, err := tx.Exec(t.Context(), "SET CONSTRAINTS stet.stet_unsettled DEFERRED"); err != nil {
		t.Fatal(err)
	}
	wantUnsettled(t, "COMMIT", tx.Commit(t.Context()))
}

// hostile is a schema with functions, operators and types of the names that the functions use.
const hostile = `CREATE SCHEMA evil;
	CREATE FUNCTION evil.taken() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'called as %', current_user USING ERRCODE = 'XX999'; END $$;
	CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.octet_length(bytea) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.octet_length(text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.make_interval(double precision) RETURNS interval LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.same(bytea, bytea) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE FUNCTION evil.less(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.taken(); END $$;
	CREATE OPERATOR evil.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = evil.same);
	CREATE OPERATOR evil.<> (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = evil.same);
	CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.less);
	CREATE DOMAIN evil.bytea AS pg_catalog.text;
	CREATE TABLE evil.records (id text);
	CREATE VIEW evil.pg_locks AS SELECT evil.taken() AS pid;
	GRANT USAGE ON SCHEMA evil TO PUBLIC`

// Objects of the caller's schemas are not used, and the caller's settings change nothing.
func TestFunctionsDoNotDependOnTheSession(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := open(t, pool, Options{})
	name := "service_" + strings.ReplaceAll(fresh(), "-", "")
	service := role(t, pool, name)
	execSQL(t, pool, "GRANT EXECUTE ON FUNCTION stet.stet_begin_raw, stet.stet_settle_raw TO "+name)
	execSQL(t, pool, hostile, pgx.QueryExecModeSimpleProtocol)
	conn, err := service.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		"CREATE TEMP TABLE records (id text); CREATE TEMP TABLE pg_locks (id text); CREATE FUNCTION pg_temp.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT ''::pg_catalog.bytea $$",
		"CREATE DOMAIN pg_temp.text AS integer; CREATE DOMAIN pg_temp.timestamptz AS integer",
		"SET search_path = evil, pg_temp, pg_catalog; SET bytea_output = escape; SET TimeZone = 'America/New_York'; SET IntervalStyle = iso_8601",
		"SET DateStyle = 'SQL, DMY'; SET transform_null_equals = on; SET plpgsql.extra_errors = 'all'; SET plpgsql.variable_conflict = use_column; SET enable_indexscan = off; SET plan_cache_mode = force_custom_plan",
		"SET row_security = off; SET check_function_bodies = off; SET quote_all_identifiers = on; SET extra_float_digits = -15; SET xmlbinary = hex; SET array_nulls = off; SET standard_conforming_strings = off",
	} {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	for _, end := range []string{"SETTLE RAW", "settle($1, 200, '{\"A\": \"b\"}', 'text/plain', 'paid')", "release($1)"} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var claim string
		if err := tx.QueryRow(t.Context(), "SELECT claim FROM stet.stet_begin('shop', $1, stet.stet_fingerprint('{a}'))", end).Scan(&claim); err != nil {
			t.Fatalf("stet_begin: %v", err)
		}
		other := beginTx(t, s) // so that pg_locks is read
		mustBegin(t, other, opOf("busy", "a"), "run")
		args := rawBegin(s, opOf("busy", "b"))
		mustBeginRaw(t, tx, args, "mismatch")
		args = rawBegin(s, opOf("raw"+end, "a"))
		begun := mustBeginRaw(t, tx, args, "run")
		if _, err := tx.Exec(t.Context(), sqlSettleRaw, rawSettle(s, begun.claim(args))...); err != nil {
			t.Fatalf("stet_settle_raw: %v", err)
		}
		if end == "SETTLE RAW" {
			c, err := store.ParseClaim(claim)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), sqlSettleRaw, rawSettle(s, c)...); err != nil {
				t.Fatalf("stet_settle_raw: %v", err)
			}
		} else if _, err := tx.Exec(t.Context(), "SELECT stet.stet_emit($1, 'a', 'x')", claim); err != nil {
			t.Fatalf("stet_emit: %v", err)
		} else if _, err := tx.Exec(t.Context(), "SELECT stet.stet_"+end, claim); err != nil {
			t.Fatalf("stet_%s: %v", end, err)
		}
		mustCommit(t, tx)
		_ = other.Rollback(t.Context())
	}
	got := mustBegin(t, s.Pool(), opOf("settle($1, 200, '{\"A\": \"b\"}', 'text/plain', 'paid')", "a"), "replay")
	if !bytes.Equal(got.Body, []byte("paid")) || got.Headers["A"][0] != "b" {
		t.Errorf("replayed: %+v", got)
	}
}

// A Go program can settle, in the same transaction, what SQL has begun.
func TestGoSettlesWhatSQLHasBegun(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	for _, end := range []string{"settle", "nothing"} {
		tx, args := beginTx(t, s), rawBegin(s, opOf(end, ""))
		c := mustBeginRaw(t, tx, args, "run").claim(args)
		if end == "settle" {
			if err := s.SettleTx(t.Context(), tx, c, completed("x"), keep); err != nil {
				t.Fatal(err)
			}
			mustCommit(t, tx)
			if rec := mustRead(t, s, c.ID); rec.State != store.Completed || string(rec.Result.Body) != "x" {
				t.Errorf("the record is %+v", rec)
			}
			continue
		}
		err := tx.Commit(t.Context())
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.TableName != "records" {
			t.Errorf("COMMIT: %v; want the table's name in it", err)
		}
		wantUnsettled(t, "COMMIT", err)
	}
}
