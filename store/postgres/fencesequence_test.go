package postgres

import (
	"regexp"
	"strings"
	"testing"
)

// Logical replication copies rows and no sequences.
func TestSequenceBehindTheFencesIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	mustClaim(t, s, request("k"))
	execSQL(t, s.Pool(), "SELECT setval('stet.records_fence', 1, false)")
	_, err := New(t.Context(), s.Pool(), Options{})
	if err == nil || !strings.Contains(err.Error(), "logical replication") {
		t.Fatalf("New: %v", err)
	}
	execSQL(t, s.Pool(), "ALTER SEQUENCE stet.records_fence RESTART WITH 100")
	restarted, err := New(t.Context(), s.Pool(), Options{})
	if err != nil {
		t.Fatalf("restarted above the fences: %v", err)
	}
	_ = restarted.Close()
	execSQL(t, s.Pool(), "SELECT setval('stet.records_fence', 1, false)")
	_, err = New(t.Context(), s.Pool(), Options{})
	if err == nil {
		t.Fatal("New took it the second time")
	}
	statement := regexp.MustCompile(`SELECT setval.*\)\)`).FindString(err.Error())
	execSQL(t, s.Pool(), statement)
	again, err := New(t.Context(), s.Pool(), Options{})
	if err != nil {
		t.Fatalf("after %s: %v", statement, err)
	}
	_ = again.Close()
}

// The rows that are found first need not be the newest.
func TestSequenceBehindTheNewestFencesIsRefused(t *testing.T) {
	t.Parallel()
	for name, settled := range map[string]bool{"settled": true, "running": false} {
		s := open(t, nil, Options{})
		mustSettle(t, s, mustClaim(t, s, request("old")).Claim(), "x")
		execSQL(t, s.Pool(), `CREATE TEMP TABLE old AS SELECT * FROM stet.records; ALTER TABLE old DROP COLUMN open_state; UPDATE old SET fence = 1, due_at = due_at - interval '1 hour';
			DO $$ BEGIN FOR i IN 1..2000 LOOP UPDATE old SET id = sha256(i::text::bytea); INSERT INTO stet.records SELECT * FROM old; END LOOP; END $$`)
		execSQL(t, s.Pool(), "SELECT setval('stet.records_fence', 5000)")
		newest := mustClaim(t, s, request("newest"))
		if settled {
			mustSettle(t, s, newest.Claim(), "x")
		}
		execSQL(t, s.Pool(), "SELECT setval('stet.records_fence', 4000)")
		if _, err := New(t.Context(), s.Pool(), Options{}); err == nil || !strings.Contains(err.Error(), "logical replication") {
			t.Errorf("%s: New: %v", name, err)
		}
	}
}
