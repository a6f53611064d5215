package postgres

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// A key may be locked for a moment by a request for something else, which finds the
// record. That makes no mismatch of the record's own request.
func TestRequestForSomethingElseMakesNoMismatch(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, opOf("k", "mine"), "run")
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_release($1)", begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	other := beginTx(t, s)
	l := s.locks(store.ID(idOf("k")), opOf("k", "another").Fingerprint)
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1), pg_advisory_xact_lock($2, $3)", l.key, l.id, l.finger); err != nil {
		t.Fatal(err)
	}
	if got := mustBegin(t, s.Pool(), opOf("k", "mine"), "in_flight"); got.State == nil || *got.State != "running" {
		t.Errorf("in flight, and the state is %v; want running", got.State)
	}
	mustBegin(t, s.Pool(), opOf("k", "another"), "mismatch")
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, beginTx(t, s), opOf("k", "mine"), "run")
}

// Between the two steps of a two-phase commit the key is in flight, for another request a
// mismatch, and the outcome stands after the second.
func TestPreparedTransactionHoldsItsKey(t *testing.T) {
	t.Parallel()
	server := rig.NewPostgres(t, rig.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "4"}})
	s := open(t, connect(t, server.Database(t)), Options{})
	te, err := stet.WithTx(stettest.Engine(t, s, stet.Options{SweepEvery: -1}), s)
	if err != nil {
		t.Fatal(err)
	}
	do := func(o stet.Op) error {
		_, err := stet.DoTx(t.Context(), te, o, func(context.Context, pgx.Tx) (string, error) { t.Error("it ran"); return "", nil })
		return err
	}
	conn, err := s.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{"BEGIN", "SELECT stet.stet_begin('shop', 'forgotten')"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	_, err = conn.Exec(t.Context(), "PREPARE TRANSACTION 'x'")
	wantUnsettled(t, "PREPARE TRANSACTION without an outcome", err)
	if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	begun := mustBegin(t, conn, opOf("k", "a"), "run")
	if _, err := conn.Exec(t.Context(), "SELECT stet.stet_settle($1, 200, body => '1', content_type => 'application/json')", begun.Claim); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "PREPARE TRANSACTION 'x'"); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, s.Pool(), opOf("k", "a"), "in_flight")
	mustBegin(t, s.Pool(), opOf("k", "b"), "mismatch")
	if err := do(opOf("k", "a")); stet.KindOf(err) != stet.KindInFlight {
		t.Errorf("DoTx beside it: %v; want KindInFlight", err)
	}
	if err := do(opOf("k", "b")); stet.KindOf(err) != stet.KindMismatch {
		t.Errorf("DoTx of another request beside it: %v; want KindMismatch", err)
	}
	if _, err := conn.Exec(t.Context(), "COMMIT PREPARED 'x'"); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, s.Pool(), opOf("k", "a"), "replay")
}

// A retention is a number of seconds, independent of the session's calendar,
// and at most the longest time.Duration of Go.
func TestRetentionIsInSecondsAndBounded(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	rec := mustClaim(t, s, request("k"))
	for _, sql := range []string{
		"stet_settle($1, result => '101 years')", "stet_settle($1, tombstone => '200000 years')", "stet_settle($1, result => '170000000 years')",
		"stet_release($1, '200000 years')", "stet_release($1, '0')", "stet_release($1, '-1 day')",
	} {
		_, err := s.Pool().Exec(t.Context(), "SELECT stet."+sql, rec.Claim().String())
		wantCode(t, sql, err, "ST001")
	}
	tx := beginTx(t, s)
	if _, err := tx.Exec(t.Context(), "SET LOCAL TimeZone = 'America/New_York'"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, result => '6 months', tombstone => '181 days')", rec.Claim().String()); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	const day = 24 * time.Hour
	rec = mustRead(t, s, rec.ID)
	if result, tombstone := rec.ExpiresAt.Sub(rec.SettledAt), rec.ForgetAt.Sub(rec.SettledAt); result != 180*day || tombstone != 181*day {
		t.Errorf("the result is kept for %v and the tombstone for %v; want 180 and 181 days", result, tombstone)
	}
	rec = mustClaim(t, s, request("released"))
	execSQL(t, s.Pool(), "SELECT stet.stet_release($1, '100 years')", rec.Claim().String())
	rec = mustRead(t, s, rec.ID)
	if kept := rec.ForgetAt.Sub(rec.SettledAt); kept != 36525*day {
		t.Errorf("a released record is kept for %v; want 36525 days", kept)
	}
}

// A procedure may work for hours, which to PostgreSQL is one statement: the times of its
// operations are those of its calls.
func TestTimesAreThoseOfTheCalls(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	execSQL(t, s.Pool(), `DO $$ DECLARE
		began timestamptz := clock_timestamp();
		r     record;
	BEGIN
		SELECT * INTO r FROM stet.stet_begin('shop', 'k');
		PERFORM stet.stet_settle(r.claim);
		SELECT * INTO r FROM stet.records;
		IF r.claimed_at < began OR r.settled_at < r.claimed_at THEN
			RAISE 'claimed at %, settled at %, and the statement reached here at %', r.claimed_at, r.settled_at, began;
		END IF;
	END $$`)
}

// However a transaction leaves its outcome behind, it cannot be committed without one.
func TestUnsettledOperationCannotBeCommitted(t *testing.T) {
	t.Parallel()
	s := ledger(t, Options{})
	for name, steps := range map[string][]string{
		"the outcome rolled back to a savepoint":     {"BEGIN a", "SAVEPOINT s", "SETTLE a", "ROLLBACK TO s"},
		"the check made early, and then rolled back": {"BEGIN a", "SAVEPOINT s", "SETTLE a", "SET CONSTRAINTS ALL IMMEDIATE", "ROLLBACK TO s"},
		"one of two":                    {"BEGIN a", "BEGIN b", "SETTLE a"},
		"begun again after its release": {"BEGIN a", "RELEASE a", "BEGIN a"},
		"begun in a savepoint":          {"SAVEPOINT s", "BEGIN a", "RELEASE SAVEPOINT s"},
		"checked at once":               {"BEGIN a", "SET CONSTRAINTS ALL IMMEDIATE"},
	} {
		conn, err := s.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		claims := map[string]string{}
		_, err = conn.Exec(t.Context(), "BEGIN; INSERT INTO charges VALUES ('x')")
		for _, step := range append(steps, "COMMIT") {
			verb, key, _ := strings.Cut(step, " ")
			switch {
			case err != nil:
			case verb == "BEGIN":
				claims[key] = *mustBegin(t, conn, opOf(name+key, ""), "run").Claim
			case verb == "SETTLE" || step == "RELEASE a":
				_, err = conn.Exec(t.Context(), "SELECT stet.stet_"+strings.ToLower(verb)+"($1)", claims[key])
			default:
				_, err = conn.Exec(t.Context(), step)
			}
		}
		wantUnsettled(t, name, err)
		_, err = conn.Exec(t.Context(), "ROLLBACK")
		if conn.Release(); err != nil {
			t.Fatal(err)
		}
	}
	var n int
	if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM stet.records").Scan(&n); err != nil || n != 0 || charges(t, s) != 0 {
		t.Errorf("%d records and %d charges, %v; want none", n, charges(t, s), err)
	}
	// With all outcomes it can, also after rollbacks.
	tx := beginTx(t, s)
	a, b := mustBegin(t, tx, opOf("a", ""), "run"), mustBegin(t, tx, opOf("b", ""), "run")
	for _, step := range []struct{ sql, claim string }{
		{"SAVEPOINT s", ""}, {"SELECT stet.stet_settle($1, body => 'first')", *a.Claim}, {"ROLLBACK TO s", ""},
		{"SELECT stet.stet_settle($1, body => 'second')", *a.Claim}, {"SELECT stet.stet_settle($1)", *b.Claim}, {"SET CONSTRAINTS ALL IMMEDIATE", ""},
	} {
		args := []any{}
		if step.claim != "" {
			args = append(args, step.claim)
		}
		if _, err := tx.Exec(t.Context(), step.sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	if got := mustBegin(t, tx, opOf("a", ""), "replay"); string(got.Body) != "second" {
		t.Errorf("in its own transaction %q is replayed; want the second", got.Body)
	}
	mustCommit(t, tx)
}

// Whatever the tables are called, SQL locks by the numbers of Go, and each replays what
// the other has settled.
func TestFunctionsAgreeWithGoUnderAnyName(t *testing.T) {
	t.Parallel()
	pool := database(t)
	longest := strings.Repeat("T", 51)
	for _, o := range []Options{
		{Schema: `Sch"e'ma ü`, Table: `Ta"b'le` + "\n-- x"}, {Table: longest}, {Schema: "$stet$", Table: "$1 %s"}, {Schema: "stet", Table: "stet"}, {Schema: "records", Table: "operations"},
		{Schema: "public"}, {Table: "begin"},
	} {
		if o.Table == "stet" { // whose functions have the names of the default's
			o.Schema = "other"
		}
		s := open(t, pool, o)
		quoted := func(f string) string {
			if s.n.table == defaultTable {
				return pgx.Identifier{s.n.schema, "stet_" + f}.Sanitize()
			}
			return pgx.Identifier{s.n.schema, s.n.table + "_" + f}.Sanitize()
		}
		for i := range 20 {
			req := request(fmt.Sprint(i, rand.Int64()))
			l := s.locks(req.ID, req.Fingerprint)
			var key, waiters, half, finger int64
			err := pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT %[1]s(%[2]s('run', ARRAY[$1::bytea])), %[1]s(substr($1::bytea, 9)) # %[1]s(%[2]s('wait', '{}')),
				%[1]s(%[2]s('finger', ARRAY[$1::bytea])) << 32 >> 32, %[1]s(%[3]s(ARRAY[$2::bytea])) << 32 >> 32`, quoted("number"), quoted("own"), quoted("digest")),
				req.ID[:], req.Fingerprint[:]).Scan(&key, &waiters, &half, &finger)
			if err != nil || key != l.key || waiters != l.waiters || int32(half) != l.id || int32(finger) != l.finger {
				t.Fatalf("%+v: locks of SQL are %d, %d, %d, %d, %v; of Go %+v", o, key, waiters, half, finger, err, l)
			}
		}
		te, err := stet.WithTx(stettest.Engine(t, s, stet.Options{SweepEvery: -1}), s)
		if err != nil {
			t.Fatal(err)
		}
		tx := beginTx(t, s)
		var claim string
		if err := tx.QueryRow(t.Context(), "SELECT claim FROM "+quoted("begin")+"('shop', 'k')").Scan(&claim); err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT "+quoted("settle")+"($1, 200, body => '7', content_type => 'application/json')", claim); err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		mustCommit(t, tx)
		res, err := stet.DoTx(t.Context(), te, stet.Op{Scope: "shop", Key: "k"}, func(context.Context, pgx.Tx) (int, error) { t.Error("it ran"); return 0, nil })
		if err != nil || res.Value != 7 {
			t.Errorf("%+v: Go replays %+v, %v; want 7", o, res, err)
		}
		steps, err := Migrations(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(t.Context(), "SELECT "+quoted("emit")+"(claim, 'a', '7'), "+quoted("settle")+"(claim, 200) FROM "+quoted("begin")+"('shop', 'k2')"); err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		if all := left(t, te.Engine()); len(all) != 1 || all[0].To != "a" || string(all[0].Body) != "7" {
			t.Errorf("%+v: sent are %+v", o, all)
		}
		execSQL(t, pool, steps[2].Down+steps[1].Down+steps[1].Up+steps[2].Up, pgx.QueryExecModeSimpleProtocol)
	}
}

// Header fields have the names that Go writes. Those of the connection are left out, which
// would keep the response from being sent.
func TestHeaderFieldsOfSQLCanBeSentByGo(t *testing.T) {
	s := open(t, nil, Options{})
	names := []string{"x-a_b", "X_Foo", "x.y-Z!a", "ETag", "www-authenticate", "-", "a--b", "9x-9X", "x-1a", "X-1A", "_x-_Y", "!#$%&'*+.^_`|~", "x-"}
	for range 50 {
		name := make([]byte, 1+rand.IntN(12))
		for i := range name {
			const chars = "--aZ09_.!~"
			name[i] = chars[rand.IntN(len(chars))]
		}
		names = append(names, string(name))
	}
	for _, name := range names {
		var head []byte
		if err := s.Pool().QueryRow(t.Context(), "SELECT stet.stet_fields(jsonb_build_object($1::text, 'v'))", name).Scan(&head); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want := fmt.Sprintf("\x03{%q: [\"v\"]}", http.CanonicalHeaderKey(name)); string(head) != want {
			t.Errorf("%s: it is stored as %s; want %s", name, head, want)
		}
	}
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	m, err := stethttp.New(e, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatal(err)
	}
	ops := make(chan stet.Op, 1)
	srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ops <- stet.FromContext(r.Context()).Op() })))
	defer srv.Close()
	post := func(key string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", key)
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		var body bytes.Buffer
		if _, err := body.ReadFrom(res.Body); err != nil {
			t.Fatal(err)
		}
		return res, body.String()
	}
	post("k1")
	o := <-ops
	o.Key = "k2"
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, o, "run")
	_, err = tx.Exec(t.Context(), `SELECT stet.stet_settle($1, 201, '{"content-length": 42, "Transfer-Encoding": "chunked", "connection": ["close"], "Trailer": "X-Kept", "Date": "yesterday",
		"proxy-authenticate": "x", "Upgrade": "h2c", "TE": "x", "Keep-Alive": "x", "x-kept": "yes\tsir"}', 'text/plain', 'seven')`, begun.Claim)
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if got := mustBegin(t, s.Pool(), o, "replay"); fmt.Sprint(got.Headers) != "map[X-Kept:[yes\tsir]]" {
		t.Errorf("SQL replays the header fields %v; want X-Kept alone", got.Headers)
	}
	if res, body := post("k2"); res.StatusCode != 201 || body != "seven" || res.Header.Get("X-Kept") != "yes\tsir" || res.Header.Get("Date") == "yesterday" {
		t.Errorf("Go replays %d %v %q", res.StatusCode, res.Header, body)
	}
	for _, c := range []string{"\x01", "\x08", "\n", "\x0b", "\r", "\x1f", "\x7f"} {
		_, err := s.Pool().Exec(t.Context(), "SELECT stet.stet_fields(jsonb_build_object('A', $1::text))", "a"+c+"b")
		wantCode(t, fmt.Sprintf("%q in a value", c), err, "ST001")
	}
	_, err = s.Pool().Exec(t.Context(), "SELECT stet.stet_fields((SELECT jsonb_object_agg('X-' || n, '') FROM generate_series(1, 100000) n))")
	wantCode(t, "100,000 header fields", err, "ST001")
}

// A reference that begins with the mark of an encrypted one could not be read by Go.
func TestReferenceWithTheMarkOfAnEncryptedOneIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	_, err := s.Pool().Exec(t.Context(), "SELECT stet.stet_begin('shop', 'k', ref => 'sealed:x')")
	wantCode(t, "ref => 'sealed:x'", err, "ST001")
}

// In a database of another encoding IDs, names and header fields are the same.
func TestFunctionsInADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	admin := database(t)
	name := "latin_" + strings.ReplaceAll(fresh(), "-", "")
	execSQL(t, admin, "CREATE DATABASE "+name+" ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	t.Cleanup(func() { execSQL(t, admin, "DROP DATABASE "+name+" WITH (FORCE)") })
	config := admin.Config().ConnConfig
	s := open(t, connect(t, strings.Replace(config.ConnString(), "/"+config.Database, "/"+name, 1)+"&client_encoding=UTF8"), Options{})
	o := stet.Op{Scope: "café", Key: "clé", Fingerprint: stet.NewFingerprint([]byte("é"))}
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, o, "run")
	if want := store.Digest("", o.Scope, o.Key); !bytes.Equal(begun.ID, want[:]) {
		t.Errorf("the ID is %x; want %v", begun.ID, want)
	}
	if _, err := tx.Exec(t.Context(), `SELECT stet.stet_settle($1, 200, '{"X-A": "é"}', 'application/json', $2)`, begun.Claim, []byte(`"é"`)); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if got := mustBegin(t, s.Pool(), o, "replay"); got.Headers["X-A"][0] != "é" || string(got.Body) != `"é"` {
		t.Errorf("replayed: %+v", got)
	}
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	res, err := stet.Do(t.Context(), e, o, func(context.Context) (string, error) { t.Error("it ran"); return "", nil })
	if err != nil || res.Value != "é" {
		t.Errorf("Go replays %+v, %v; want é", res, err)
	}
}
