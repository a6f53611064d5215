package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/test/stettest/sqlresult"
	"github.com/stet-go/stet/store"
)

func TestResultIsInColumns(t *testing.T) {
	s := open(t, nil, Options{})
	sqlresult.Columns[pgx.Tx]{
		Store: s,
		Read: func(t *testing.T, id store.ID) (status *int, media *string, head, body []byte) {
			err := s.Pool().QueryRow(t.Context(), "SELECT status, content_type, head, body FROM stet.records WHERE id = $1::bytea", id[:]).Scan(&status, &media, &head, &body)
			if err != nil {
				t.Fatalf("read the columns: %v", err)
			}
			return status, media, head, body
		},
		Set: func(t *testing.T, id store.ID, set string) {
			execSQL(t, s.Pool(), "UPDATE stet.records SET "+set+" WHERE id = $1::bytea", id[:])
		},
		Bytes: func(text string) string { return "'" + text + "'" },
		Settled: `settled_at = now(), expires_at = now() + interval '1 day', forget_at = now() + interval '30 days',
			due_at = now() + interval '1 day', lease_until = NULL`,
		Flip: "set_byte(head, 1, get_byte(head, 1) # 1)",
		Grow: `head || '\x00'`,
	}.Test(t)
}
