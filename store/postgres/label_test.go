package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/store"
)

// What others are to run costs nothing: a hundred thousand rows of theirs, and Due looks
// at its own through the index.
func TestWorkOfOthersDoesNotSlowOnesOwnDown(t *testing.T) {
	s := open(t, nil, Options{})
	execSQL(t, s.Pool(), `INSERT INTO stet.records (id, scope, fingerprint, owner, fence, claimed_at, attempt, state, work, run_due, name)
		SELECT sha256(n::text::bytea), sha256(''), '\x01'::bytea || sha256(''), substr(sha256(n::text::bytea), 1, 16), n, now(), 0, 6, 'w', now() - interval '1 hour',
			'other ' || (n % 7)
		FROM generate_series(1, 100000) n`)
	execSQL(t, s.Pool(), `SELECT setval('stet.records_fence', 200000)`)
	own := request("own")
	own.Label.Name = "own"
	if _, err := s.Accept(t.Context(), own, []byte("w"), 0); err != nil {
		t.Fatal(err)
	}
	conn, err := s.own.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	explain := func(what string, st *statement, last string) string {
		t.Helper()
		if _, err := conn.Conn().Prepare(t.Context(), what, st.sql); err != nil {
			t.Fatal(err)
		}
		sql := fmt.Sprintf("EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) EXECUTE %s(10, 1000000, %s)", what, last)
		rows, err := conn.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	for what, plan := range map[string]string{
		"one name":  explain("due_run", s.sql.dueRun, "ARRAY['own']"),
		"all names": explain("due_any", s.sql.dueAny, "''"),
	} {
		_, after, _ := strings.Cut(plan, "Buffers: shared hit=")
		var pages int
		if _, err := fmt.Sscan(after, &pages); err != nil || pages > 2000 || strings.Contains(plan, "Seq Scan") {
			t.Errorf("Due of %s looks at %d pages:\n%s", what, pages, plan)
		}
	}
	if recs, err := s.Due(t.Context(), 10, time.Hour, "own", "nothing"); err != nil || len(recs) > 1 {
		t.Errorf("%d records, %v", len(recs), err)
	}
	names := make(map[string]int)
	for range 3 {
		recs, err := s.Due(t.Context(), 14, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range recs {
			names[rec.Label.Name]++
		}
	}
	if len(names) < 7 || names["other 0"] < 5 || names["other 0"] > 7 {
		t.Errorf("without names they came %v; want them in turns", names)
	}
}

func TestMoreNamesThanOneReadComeInTurns(t *testing.T) {
	s := open(t, nil, Options{})
	const n = store.MaxDueNames + 44
	for i := range n {
		req := request(fmt.Sprint(i))
		req.Label.Name = fmt.Sprintf("name %03d", i)
		if _, err := s.Accept(t.Context(), req, []byte("w"), 0); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	for range 3 {
		recs, err := s.Due(t.Context(), 1000, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		got += len(recs)
	}
	if got != n {
		t.Errorf("%d of %d names were due", got, n)
	}
}

func TestOperationsCanBeReadByPeople(t *testing.T) {
	s := open(t, nil, Options{})
	req := request("k")
	req.Label = store.Label{Class: "pay", Name: "POST /v1/payments", Ref: "order 7"}
	rec, err := s.Claim(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out := store.Settlement{State: store.Completed, Result: store.Result{Status: 201, Type: "application/json", Head: []byte{1}, Body: []byte(`{"id":"é"}`)}}
	if err := s.Settle(t.Context(), rec.Claim(), out, keep); err != nil {
		t.Fatal(err)
	}
	var id, state, class, name, ref, media, body string
	var status, size int
	var sealed bool
	err = s.Pool().QueryRow(t.Context(), "SELECT id, state, class, name, ref, status, content_type, body, body_bytes, sealed FROM stet.operations").Scan(
		&id, &state, &class, &name, &ref, &status, &media, &body, &size, &sealed)
	if err != nil || id != req.ID.String() || state != "completed" || class != "pay" || name != "POST /v1/payments" || ref != "order 7" ||
		status != 201 || media != "application/json" || body != `{"id":"\303\251"}` || size != 11 || sealed {
		t.Errorf("%s %s %s %s %s, %d %s %s (%d bytes), sealed: %v, %v", id, state, class, name, ref, status, media, body, size, sealed, err)
	}
}
