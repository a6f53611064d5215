package postgres

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestFragmentsOfThePageSettle runs each fragment of docs/sql.md that has a claim written in it.
func TestFragmentsOfThePageSettle(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, nil, Options{})
	execSQL(t, s.Pool(), "CREATE TABLE IF NOT EXISTS payments (amount integer)")
	fragments := regexp.MustCompile("(?s)```sql\nBEGIN;\n(.*?)COMMIT;\n```").FindAllStringSubmatch(string(page), -1)
	if len(fragments) != 2 {
		t.Fatalf("the page has %d fragments", len(fragments))
	}
	for _, fragment := range fragments {
		op := opOf(fresh(), "a payment")
		tx := beginTx(t, s)
		claim := mustBegin(t, tx, op, "run").Claim
		if _, err := tx.Exec(t.Context(), strings.ReplaceAll(fragment[1], "c1.…", *claim)); err != nil {
			t.Fatalf("%v\n%s", err, fragment[1])
		}
		mustCommit(t, tx)
		if again := mustBegin(t, s.Pool(), op, "replay"); *again.Status != 201 || string(again.Body) != "paid" {
			t.Errorf("a retry receives %d %q", *again.Status, again.Body)
		}
	}
}
