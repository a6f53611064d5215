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
