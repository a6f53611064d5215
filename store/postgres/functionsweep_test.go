package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/store"
)

// sweepable leaves a record of every kind in the table, each of whose times has passed.
func sweepable(t *testing.T, s *Store) {
	t.Helper()
	for _, key := range []string{"settled", "forgotten", "failed", "released", "dead", "watched", "repeatable", "unknown", "alive", "damaged", "outbox", "held"} {
		c := mustClaim(t, s, request(key)).Claim()
		switch key {
		case "settled", "forgotten", "failed":
			mustSettle(t, s, c, "x")
		case "released":
			if err := s.Release(t.Context(), c, keep); err != nil {
				t.Fatal(err)
			}
		}
		set := map[string]string{
			"settled": "expires_at = now(), due_at = now()", "forgotten": "expires_at = now(), forget_at = now(), due_at = now()",
			"failed": "state = 3, expires_at = now(), due_at = now()", "released": "forget_at = now(), due_at = now()",
			"dead": "lease_until = now(), due_at = now()", "watched": "watched = true, lease_until = now(), due_at = now()",
			"repeatable": "run_due = now(), work = 'w', lease_until = now(), due_at = now()", "unknown": "state = 5, due_at = NULL", "alive": "attempt = 2",
			"damaged": "owner = '', due_at = now()", "held": "lease_until = now(), due_at = now()",
			"outbox": "state = 2, work = 'w', expires_at = now(), due_at = now(), lease_until = NULL",
		}[key]
		execSQL(t, s.Pool(), "UPDATE stet.records SET "+set+" WHERE id = $1", c.ID[:])
	}
}

// rowsOf are all records, without the time of the sweep.
func rowsOf(t *testing.T, s *Store) string {
	t.Helper()
	rows, err := s.Pool().Query(t.Context(), `SELECT (to_jsonb(r) - 'settled_at' - 'lease_until')::text || (settled_at IS NULL) || (lease_until IS NULL) || coalesce(lease_until <= now(), false)
		FROM stet.records r ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

// stet_sweep leaves what the store's sweep leaves, and counts the same.
func TestSweepOfSQLIsThatOfGo(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	sweepable(t, s)
	execSQL(t, s.Pool(), "CREATE TABLE before AS SELECT * FROM stet.records")
	held := func() pgx.Tx {
		tx := beginTx(t, s)
		id := request("held").ID
		if _, err := tx.Exec(t.Context(), "SELECT FROM stet.records WHERE id = $1 FOR UPDATE", id[:]); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	tx := held()
	want, err := s.Sweep(t.Context(), 100)
	if err != nil || want != (store.Swept{MarkedUnknown: 2, Expired: 3, Purged: 2}) {
		t.Fatalf("the store's sweep: %+v, %v", want, err)
	}
	rows := rowsOf(t, s)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	execSQL(t, s.Pool(), `DO $$ BEGIN
		DELETE FROM stet.records;
		EXECUTE (SELECT format('INSERT INTO stet.records (%1$s) SELECT %1$s FROM before', string_agg(quote_ident(attname), ', '))
			FROM pg_attribute WHERE attrelid = 'stet.records'::regclass AND attnum > 0 AND attgenerated = '');
	END $$`)

	heard, err := s.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Release()
	if _, err := heard.Exec(t.Context(), "LISTEN "+pgx.Identifier{s.n.channel}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	tx = held()
	var got store.Swept
	sweep := func(most int) {
		t.Helper()
		var some store.Swept
		err := s.Pool().QueryRow(t.Context(), "SELECT marked_unknown, expired, removed, more FROM stet.stet_sweep($1)", most).Scan(&some.MarkedUnknown, &some.Expired, &some.Purged, &some.More)
		if err != nil {
			t.Fatal(err)
		}
		got = store.Swept{MarkedUnknown: got.MarkedUnknown + some.MarkedUnknown, Expired: got.Expired + some.Expired, Purged: got.Purged + some.Purged, More: some.More}
	}
	if sweep(3); !got.More || got.MarkedUnknown+got.Expired+got.Purged > 3 {
		t.Errorf("a sweep of 3: %+v; want no more, and that there is more to do", got)
	}
	if sweep(100); got != want {
		t.Errorf("stet_sweep did %+v; want %+v", got, want)
	}
	if now := rowsOf(t, s); now != rows {
		t.Errorf("stet_sweep has left\n%s\nwant\n%s", now, rows)
	}
	n, err := heard.Conn().WaitForNotification(t.Context())
	if id := request("watched").ID; err != nil || n.Payload != id.String() {
		t.Errorf("heard %+v, %v; want of %v", n, err, id)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Rows that no sweep would change, as a service that may insert rows can write them, stay due.
func TestSweepsSkipRowsThatTheyCannotChange(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	execSQL(t, s.Pool(), `INSERT INTO stet.records (id, scope, fingerprint, owner, fence, claimed_at, due_at, attempt, state)
		SELECT sha256(int4send(n)), sha256('x'), '\x00' || sha256('y'), substr(sha256('o'), 1, 16), 1, now(), '-infinity', 1, 1 FROM generate_series(1, 20) n`)
	for name, sweep := range map[string]func() (store.Swept, error){
		"Go": func() (store.Swept, error) { return s.Sweep(t.Context(), 10) },
		"SQL": func() (got store.Swept, err error) {
			err = s.Pool().QueryRow(t.Context(), "SELECT marked_unknown, expired, removed, more FROM stet.stet_sweep(10)").Scan(&got.MarkedUnknown, &got.Expired, &got.Purged, &got.More)
			return got, err
		},
	} {
		id := request(name).ID
		mustSettle(t, s, mustClaim(t, s, request(name)).Claim(), "x")
		execSQL(t, s.Pool(), "UPDATE stet.records SET expires_at = now(), due_at = now() WHERE id = $1", id[:])
		if got, err := sweep(); err != nil || got != (store.Swept{Expired: 1}) {
			t.Errorf("%s: %+v, %v; want the expired result only", name, got, err)
		}
	}
}

func TestSweepOfSQL_RefusesWrongArgumentsAndRoles(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	for _, most := range []string{"0", "NULL", "-1", "10001"} {
		_, err := s.Pool().Exec(t.Context(), fmt.Sprintf("SELECT stet.stet_sweep(%s)", most))
		wantCode(t, "a sweep of "+most, err, "ST001")
	}
	service := role(t, s.Pool(), "service_"+strings.ReplaceAll(fresh(), "-", ""))
	_, err := service.Exec(t.Context(), "SELECT stet.stet_sweep()")
	wantCode(t, "a sweep by a role without the right", err, codeForbidden)
}

// What the page gives to pg_cron sweeps until nothing is left to do, each step in a
// transaction of its own. Here it is run as pg_cron runs it: by a simple query.
func TestSweepOfThePageEndsWhenNothingIsLeft(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	_, job, _ := strings.Cut(string(page), "SELECT cron.schedule('stet sweep', '* * * * *', $job$")
	job, _, ok := strings.Cut(job, "$job$);")
	if !ok || !strings.Contains(job, "(10000)") {
		t.Fatalf("the page has no job for pg_cron: %q", job)
	}
	s := open(t, nil, Options{})
	sweepable(t, s)
	execSQL(t, s.Pool(), "CREATE TABLE public.steps (tx bigint); CREATE FUNCTION step() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.steps VALUES (txid_current()); RETURN NULL; END';"+
		"CREATE TRIGGER step AFTER UPDATE OR DELETE ON stet.records FOR EACH STATEMENT EXECUTE FUNCTION step()", pgx.QueryExecModeSimpleProtocol)
	execSQL(t, s.Pool(), strings.Replace(job, "(10000)", "(3)", 1), pgx.QueryExecModeSimpleProtocol)
	var steps int
	if err := s.Pool().QueryRow(t.Context(), "SELECT count(DISTINCT tx) FROM public.steps").Scan(&steps); err != nil {
		t.Fatal(err)
	}
	if left, err := s.Sweep(t.Context(), 100); err != nil || left != (store.Swept{}) || steps < 3 {
		t.Errorf("the job has left %+v, %v, after %d transactions; want nothing, after 3 at least", left, err, steps)
	}
}
