package postgres

import (
	"fmt"

	"github.com/stet-go/stet/store"
)

// readable reports whether row.scan can read a row: its values are those of the migrations,
// whichever program wrote them.
const readable = `(octet_length(r.id) = 32 AND octet_length(r.scope) = 32 AND octet_length(r.fingerprint) = 33
	AND octet_length(r.owner) = 16 AND r.fence > 0 AND r.state BETWEEN {running} AND {accepted})`

var _ = [1]struct{}{}[len(store.ID{})-32+len(store.Fingerprint{})-33+len(store.Owner{})-16]

// sqlReplace makes a tombstone of a row that cannot be read. Where the fingerprint is
// what cannot, every claim is a mismatch.
const sqlReplace = `
UPDATE {records} r SET owner = $3::bytea, fence = CASE WHEN $2::bigint > 0 THEN $2::bigint ELSE nextval({fence}::regclass) END, state = {failed}, gone = true, ` + bare + `,
	scope = CASE WHEN octet_length(r.scope) = 32 THEN r.scope ELSE decode(repeat('00', 32), 'hex') END,
	fingerprint = CASE WHEN octet_length(r.fingerprint) = 33 THEN r.fingerprint ELSE decode(repeat('00', 33), 'hex') END,
	settled_at = statement_timestamp(), expires_at = statement_timestamp(), lease_until = NULL,
	forget_at = statement_timestamp() + interval '30 days', due_at = statement_timestamp() + interval '30 days',
	work = NULL, notes = NULL, run_due = NULL, relay_due = NULL, cancel_at = NULL
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND NOT ` + readable + `
RETURNING 1`

// partial is the error of a call about many records of which some cannot be read.
func partial(step string, bad []store.Claim) error {
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("postgres: %s: %w", step, &store.PartialError{Claims: bad, Cause: errUnreadable})
}
