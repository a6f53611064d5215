package sqlite

import (
	"database/sql"
	"testing"

	"github.com/stet-go/stet/internal/test/stettest/sqlresult"
	"github.com/stet-go/stet/store"
)

func TestResultIsInColumns(t *testing.T) {
	s := openStore(t, Options{})
	sqlresult.Columns[*sql.Tx]{
		Store: s,
		Read: func(t *testing.T, id store.ID) (status *int, media *string, head, body []byte) {
			err := s.DB().QueryRow("SELECT status, content_type, head, body FROM stet_records WHERE id = ?", id[:]).Scan(&status, &media, &head, &body)
			if err != nil {
				t.Fatalf("read the columns: %v", err)
			}
			return status, media, head, body
		},
		Set: func(t *testing.T, id store.ID, set string) {
			if _, err := s.DB().Exec("UPDATE stet_records SET "+set+" WHERE id = ?", id[:]); err != nil {
				t.Fatalf("set %s: %v", set, err)
			}
		},
		Bytes: func(text string) string { return "CAST('" + text + "' AS BLOB)" },
		Settled: `settled = unixepoch() * 1000000, expires = (unixepoch() + 86400) * 1000000,
			forget = (unixepoch() + 2592000) * 1000000, due = (unixepoch() + 86400) * 1000000, lease = NULL`,
		Flip: "CAST(substr(head, 1, 1) || x'00' || substr(head, 3) AS BLOB)",
		Grow: "CAST(head || x'00' AS BLOB)",
	}.Test(t)
}
