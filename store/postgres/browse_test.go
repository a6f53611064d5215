package postgres

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/store"
)

// browse returns what all pages of q show, by ID.
func browse(t testing.TB, s *Store, q store.Query) (found map[store.ID]store.Record, pages int) {
	t.Helper()
	found = make(map[store.ID]store.Record)
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
func TestPagesReadABoundedNumberOfRecords(t *testing.T) {
	s := open(t, nil, Options{})
	const rows = 3 * browseLook
	execSQL(t, s.Pool(), `INSERT INTO stet.records (id, scope, fingerprint, owner, fence, attempt, state, claimed_at, settled_at, expires_at, forget_at, due_at)
		SELECT sha256(int8send(i)), sha256(int8send(i)), '\x01'::bytea || sha256(int8send(i)), substr(sha256(int8send(i)), 1, 16), i, 1,
			5 - i % 2 * 3, now(), now(), CASE WHEN i % 2 = 1 THEN now() + interval '1 day' END, now() + '1 day', now() + '1 day' FROM generate_series(1, $1::int) i`, rows)
	execSQL(t, s.Pool(), "ANALYSE stet.records")
	last := request("the last one")
	claim := mustClaim(t, s, last).Claim()
	for name, q := range map[string]store.Query{
		"failed":         {States: []store.State{store.Failed}},
		"older":          {OlderThan: time.Hour},
		"unknown, older": {States: []store.State{store.Unknown}, OlderThan: time.Hour},
		"another scope":  {Scope: last.Scope, States: []store.State{store.Unknown}},
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
	if found, pages := browse(t, s, store.Query{Scope: last.Scope, States: []store.State{store.Completed}}); len(found) != 1 || pages != 1 {
		t.Errorf("a scope of one record: %d records in %d pages", len(found), pages)
	}
	if found, _ := browse(t, s, store.Query{States: []store.State{store.Unknown}, Limit: store.MaxBrowse}); len(found) != rows/2 {
		t.Errorf("%d unknown records; want %d", len(found), rows/2)
	}
}

// Each statement finds its rows by the one index that is meant for it, and by no
// other: a plan for a small table may be wrong for a large one.
func TestStatementsUseTheirIndexes(t *testing.T) {
	s := open(t, nil, Options{})
	conn, err := s.own.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	index := map[*statement]string{ // of statements that do not find records by ID
		s.sql.browseOpen: "records_open", s.sql.sweep: "records_due",
		s.sql.dueRun: "records_run", s.sql.dueAny: "records_run", s.sql.dueRelay: "records_relay",
		s.sql.confirm: "", s.sql.audible: "", s.sql.concurrent: "", s.sql.tellGroup: "", // look at none
		s.sql.finish: "", s.sql.finishGroup: "", // only write
		s.sql.history: "records_history_pkey",
	}
	for _, field := range reflect.VisibleFields(reflect.TypeOf(s.sql)) {
		if field.Anonymous {
			continue
		}
		c := struct {
			index     string
			statement *statement
		}{"records_pkey", (*statement)(reflect.ValueOf(s.sql).FieldByIndex(field.Index).UnsafePointer())}
		if other, ok := index[c.statement]; ok {
			c.index = other
		}
		if c.index == "" {
			continue
		}
		name := field.Name
		prepared, err := conn.Conn().Prepare(t.Context(), name, c.statement.sql)
		if err != nil {
			t.Fatal(err)
		}
		execute := fmt.Sprintf("EXPLAIN EXECUTE %q", name)
		if n := len(prepared.ParamOIDs); n > 0 {
			execute += "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
		}
		rows, err := conn.Query(t.Context(), execute, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		text := strings.Join(plan, "\n")
		if err != nil || !strings.Contains(text, c.index) || strings.Contains(text, "Seq Scan") {
			t.Errorf("%s does not use %s: %v\n%s", name, c.index, err, text)
		}
		for _, other := range []string{"records_pkey", "records_open", "records_due", "records_run", "records_relay"} {
			if other != c.index && strings.Contains(text, other) {
				t.Errorf("%s uses %s\n%s", name, other, text)
			}
		}
	}
}

// What changes its place in one order is not browsed in that order.
func TestRecordThatIsClaimedAgainComesOnce(t *testing.T) {
	s := open(t, nil, Options{})
	var all []store.ClaimRequest
	for i := range 20 {
		req := request(fmt.Sprint(i))
		if err := s.Release(t.Context(), mustClaim(t, s, req).Claim(), keep); err != nil {
			t.Fatal(err)
		}
		all = append(all, req)
	}
	q, seen := store.Query{States: []store.State{store.Running, store.Retryable}, Limit: 3}, make(map[store.ID]int)
	for i := range all {
		p, err := s.Browse(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range p.Records {
			seen[rec.ID]++
		}
		req := all[i]
		req.Owner = store.NewOwner()
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

// The length of a cursor tells nothing: that of a record that cannot be read is any.
func TestCursorsOfOtherQueriesAreRefused(t *testing.T) {
	s := open(t, nil, Options{})
	id := strings.Repeat("0", 64)
	for _, q := range []store.Query{
		{After: id}, {After: "f" + id[:16]}, {After: "ix" + id[1:]},
		{After: "i" + id, States: []store.State{store.Unknown}}, {After: "f" + strings.Repeat("f", 16), States: []store.State{store.Unknown}},
		{After: "i" + id, Scope: store.DigestScope("", "test")},
	} {
		if _, err := s.Browse(t.Context(), q); !errors.Is(err, store.ErrInvalid) {
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
		if err := s.Expire(t.Context(), c); !errors.Is(err, store.ErrFenced) {
			t.Errorf("Expire before the commit: %v", err)
		}
		return nil
	})
	if err = errors.Join(err, s.Expire(t.Context(), c)); err != nil {
		t.Error(err)
	}
	if rec := mustRead(t, s, c.ID); !rec.Gone || !rec.Result.IsZero() || rec.State != store.Completed {
		t.Errorf("%+v", rec)
	}
}
