package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
)

// browse returns what all pages of q show, by ID.
func browse(t testing.TB, s *Store, q stet.Query) (found map[stet.ID]stet.Record, pages int) {
	t.Helper()
	found = make(map[stet.ID]stet.Record)
	for ; pages < 1000; pages++ {
		p, err := s.Browse(t.Context(), q)
		if err != nil {
			t.Fatalf("Browse: %v", err)
		}
		for _, rec := range p.Records {
			if _, ok := found[rec.ID]; ok {
				t.Errorf("%v came twice", rec.ID)
			}
			found[rec.ID] = rec
		}
		if q.After = p.Next; q.After == "" {
			return found, pages + 1
		}
	}
	t.Fatal("there is no end of pages")
	return nil, 0
}

// A page is had by one index, whatever the planner believes about the table,
// and looks at a bounded number of rows.
func TestPagesLookAtABoundedNumberOfRecords(t *testing.T) {
	s := open(t, nil, Options{})
	const rows = 3 * browseLook
	execSQL(t, s.Pool(), `INSERT INTO stet.records (id, scope, fingerprint, owner, fence, attempt, state, claimed_at, settled_at, expires_at, forget_at, due_at)
		SELECT sha256(int8send(i)), sha256(int8send(i)), '\x01'::bytea || sha256(int8send(i)), substr(sha256(int8send(i)), 1, 16), i, 1,
			5 - i % 2 * 3, now(), now(), CASE WHEN i % 2 = 1 THEN now() + interval '1 day' END, now() + '1 day', now() + '1 day' FROM generate_series(1, $1::int) i`, rows)
	execSQL(t, s.Pool(), "ANALYSE stet.records")
	last := request("the last one")
	claim := mustClaim(t, s, last).Claim()
	for name, q := range map[string]stet.Query{
		"failed":         {States: []stet.State{stet.Failed}},
		"older":          {OlderThan: time.Hour},
		"unknown, older": {States: []stet.State{stet.Unknown}, OlderThan: time.Hour},
		"another scope":  {Scope: last.Scope, States: []stet.State{stet.Unknown}},
	} {
		p, err := s.Browse(t.Context(), q)
		if err != nil || len(p.Records) > 0 || p.Next == "" {
			t.Errorf("%s: %d records, next %q, %v; want none, and more to look at", name, len(p.Records), p.Next, err)
		}
		if found, pages := browse(t, s, q); len(found) != 0 || pages > 5 {
			t.Errorf("%s: %d records in %d pages", name, len(found), pages)
		}
	}
	mustSettle(t, s, claim, "x")
	if found, pages := browse(t, s, stet.Query{Scope: last.Scope, States: []stet.State{stet.Completed}}); len(found) != 1 || pages != 1 {
		t.Errorf("a scope of one record: %d records in %d pages", len(found), pages)
	}
	if found, _ := browse(t, s, stet.Query{States: []stet.State{stet.Unknown}, Limit: stet.MaxBrowse}); len(found) != rows/2 {
		t.Errorf("%d unknown records; want %d", len(found), rows/2)
	}
}

// Each statement finds its rows by the one index that is meant for it, and by no
// other: what is right for a small table is not for a large one.
func TestStatementsUseTheirIndexes(t *testing.T) {
	s := open(t, nil, Options{})
	conn, err := s.own.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, c := range []struct {
		index      string
		statement  *statement
		parameters int
	}{
		{"records_pkey", s.sql.read, 1}, {"records_pkey", s.sql.end, 9}, {"records_pkey", s.sql.endFree, 9}, {"records_pkey", s.sql.endOne, 9},
		{"records_pkey", s.sql.extend, 3}, {"records_pkey", s.sql.regrant, 6}, {"records_pkey", s.sql.park, 2}, {"records_pkey", s.sql.watch, 2},
		{"records_pkey", s.sql.browse, 8}, {"records_pkey", s.sql.expire, 2},
		{"records_open", s.sql.browseOpen, 7}, {"records_due", s.sql.sweep, 1},
		{"records_pkey", s.sql.reaccept, 7}, {"records_pkey", s.sql.take, 3}, {"records_pkey", s.sql.look, 1},
		{"records_pkey", s.sql.giveBack, 3}, {"records_pkey", s.sql.giveBackFree, 3}, {"records_pkey", s.sql.cancel, 7},
		{"records_pkey", s.sql.cancelRun, 2}, {"records_pkey", s.sql.takeFree, 3}, {"records_pkey", s.sql.relayedFree, 3}, {"records_pkey", s.sql.save, 3}, {"records_pkey", s.sql.strike, 3}, {"records_pkey", s.sql.relayed, 3},
		{"records_run", s.sql.dueRun, 2}, {"records_relay", s.sql.dueRelay, 2},
	} {
		if _, err := conn.Conn().Prepare(t.Context(), c.statement.name, c.statement.sql); err != nil {
			t.Fatal(err)
		}
		nulls := strings.TrimSuffix(strings.Repeat("NULL, ", c.parameters), ", ")
		rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE "+c.statement.name+"("+nulls+")", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		text := strings.Join(plan, "\n")
		if err != nil || !strings.Contains(text, c.index) || strings.Contains(text, "Seq Scan") {
			t.Errorf("%s does not use %s: %v\n%s", c.statement.name, c.index, err, text)
		}
		for _, other := range []string{"records_pkey", "records_open", "records_due", "records_run", "records_relay"} {
			if other != c.index && strings.Contains(text, other) {
				t.Errorf("%s uses %s\n%s", c.statement.name, other, text)
			}
		}
	}
}

// What changes its place in one order is not browsed in that order.
func TestRecordThatIsClaimedAgainComesOnce(t *testing.T) {
	s := open(t, nil, Options{})
	var all []stet.ClaimRequest
	for i := range 20 {
		req := request(fmt.Sprint(i))
		if err := s.Release(t.Context(), mustClaim(t, s, req).Claim(), keep); err != nil {
			t.Fatal(err)
		}
		all = append(all, req)
	}
	q, seen := stet.Query{States: []stet.State{stet.Running, stet.Retryable}, Limit: 3}, make(map[stet.ID]int)
	for i := range all {
		p, err := s.Browse(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range p.Records {
			seen[rec.ID]++
		}
		req := all[i]
		req.Owner = stet.NewOwner()
		mustClaim(t, s, req)
		if q.After = p.Next; q.After == "" {
			break
		}
	}
	for _, req := range all {
		if seen[req.ID] != 1 {
			t.Errorf("%v came %d times", req.ID, seen[req.ID])
		}
	}
}

func TestCursorsOfOtherQueriesAreRefused(t *testing.T) {
	s := open(t, nil, Options{})
	id := strings.Repeat("0", 64)
	for _, q := range []stet.Query{
		{After: id}, {After: "f" + id[:16]}, {After: "i" + id[:62]}, {After: "ix" + id[1:]},
		{After: "i" + id, States: []stet.State{stet.Unknown}}, {After: "f" + strings.Repeat("f", 16), States: []stet.State{stet.Unknown}},
		{After: "i" + id, Scope: stet.DigestScope("", "test")},
	} {
		if _, err := s.Browse(t.Context(), q); !errors.Is(err, stet.ErrInvalid) {
			t.Errorf("%+v: %v; want ErrInvalid", q, err)
		}
	}
}

func TestExpireDoesNotSeeAnOpenTransaction(t *testing.T) {
	s := open(t, nil, Options{})
	c := mustClaim(t, s, request("k")).Claim()
	err := pgx.BeginFunc(t.Context(), s.Pool(), func(tx pgx.Tx) error {
		if err := s.SettleTx(t.Context(), tx, c, completed("x"), keep); err != nil {
			return err
		}
		if err := s.Expire(t.Context(), c); !errors.Is(err, stet.ErrFenced) {
			t.Errorf("Expire before the commit: %v", err)
		}
		return nil
	})
	if err = errors.Join(err, s.Expire(t.Context(), c)); err != nil {
		t.Error(err)
	}
	if rec := mustRead(t, s, c.ID); !rec.Gone || rec.Result != nil || rec.State != stet.Completed {
		t.Errorf("%+v", rec)
	}
}
