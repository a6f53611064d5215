package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// plan is how PostgreSQL runs a statement, with the settings of its defaults.
func plan(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "EXPLAIN "+sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(lines, "\n")
}

// In a table of many settled records, unsettled records and due records are found
// by an index, also with the planner's default settings.
func TestOpenAndDueRecordsAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	const n, special = 100_000, 50
	execSQL(t, s.Pool(), fmt.Sprintf(`INSERT INTO stet.records (id, scope, fingerprint, owner, fence, claimed_at, settled_at, expires_at, forget_at, due_at, attempt, state, body)
		SELECT sha256(int4send(n)), sha256(''), '\x01'::bytea || sha256(''), substr(sha256(int4send(n)), 1, 16), n, now(), now(),
			CASE WHEN n > %[2]d THEN now() + interval '1 day' END, CASE WHEN n > %[2]d THEN now() + interval '30 days' END,
			CASE WHEN n > 2 * %[2]d THEN now() + interval '1 day' WHEN n > %[2]d THEN now() END, 1, CASE WHEN n > %[2]d THEN 2 ELSE 5 END, 'paid'
		FROM generate_series(1, %[1]d) n`, n, special))
	execSQL(t, s.Pool(), "SELECT setval('stet.records_fence', $1::bigint)", n)
	execSQL(t, s.Pool(), "ANALYZE stet.records")
	for _, tc := range []struct {
		sql, index string
		args       []any
	}{
		{s.sql.browseOpen.sql, "records_open", []any{0, 100, 100, []int16{5}, nil, nil, nil}},
		{s.sql.sweep.sql, "records_due", []any{1000}},
		{"SELECT max(fence) FROM stet.records WHERE open_state = 1", "records_open", nil},
	} {
		got := plan(t, s.Pool(), tc.sql, tc.args...)
		if !strings.Contains(got, "using "+tc.index) || strings.Contains(got, "Seq Scan on records") {
			t.Errorf("the index %s is not used:\n%s", tc.index, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	swept, err := s.Sweep(ctx, 1000)
	if err != nil || swept.Expired != special {
		t.Errorf("the sweep: %+v, %v; want %d expired", swept, err, special)
	}
}
