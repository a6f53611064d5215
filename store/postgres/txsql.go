package postgres

// The statements of transactions, for pgx and database/sql. All parameters have
// their types written out, so that they work in every mode of every driver.

// sqlEnter takes the key's lock for as long as the transaction lasts, publishes
// the fingerprint by a second one, draws the fence, and reads the record. Whoever
// finds the key locked tries the second lock for the fingerprint of his own:
// taken (0), he asks for what is being run; free (-1), he may be asking for
// something else.
//
// The record is seen as it was when the statement began. Should another
// transaction have committed and let go of the lock since, a matter of
// microseconds, then the record that it wrote keeps this one from committing.
const sqlEnter = `
SELECT CASE
	WHEN pg_try_advisory_xact_lock($1::bigint) THEN
		CASE WHEN pg_try_advisory_xact_lock($2::integer, $3::integer) THEN nextval({fence}::regclass) ELSE nextval({fence}::regclass) END
	WHEN pg_try_advisory_xact_lock_shared($2::integer, $3::integer) THEN -1
	ELSE 0 END, statement_timestamp(), ` + replicated + `, ` + columns + `
FROM (SELECT 1) one LEFT JOIN {records} r ON r.id = $4::bytea`

// sqlLoad reads a record.
const sqlLoad = `SELECT ` + columns + ` FROM {records} r WHERE r.id = $1::bytea`

// sqlRival reports whether the transaction that has the key's lock has published
// another fingerprint.
const sqlRival = `
SELECT EXISTS (
	SELECT FROM pg_locks k JOIN pg_locks f ON f.virtualtransaction = k.virtualtransaction AND f.pid = k.pid
	WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.mode = 'ExclusiveLock'
		AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND k.classid = $1::bigint::oid AND k.objid = $2::bigint::oid
		AND f.locktype = 'advisory' AND f.objsubid = 2 AND f.granted AND f.mode = 'ExclusiveLock' AND f.database = k.database
		AND f.classid = $3::bigint::oid AND f.objid <> $4::bigint::oid)`

// sqlCommitNew writes the finished record. If there is one already, it fails,
// and the transaction with it. Whoever waits for the key holds the last lock.
const sqlCommitNew = sqlFinished + sqlFinishedAt

// sqlCommitOld does so where there is a record that is free, if it still is as
// it was seen, or if the sweep has removed it since.
const sqlCommitOld = sqlFinished + `
ON CONFLICT (id) DO UPDATE SET scope = excluded.scope, fingerprint = excluded.fingerprint, owner = excluded.owner, fence = excluded.fence,
	attempt = excluded.attempt, state = excluded.state, gone = excluded.gone, result = excluded.result, claimed_at = excluded.claimed_at,
	settled_at = excluded.settled_at, expires_at = excluded.expires_at, forget_at = excluded.forget_at, due_at = excluded.due_at,
	class = excluded.class, name = excluded.name, ref = excluded.ref, work = excluded.work, relay_due = excluded.relay_due, lease_until = NULL, watched = false, notes = NULL
WHERE r.fence = $19::bigint AND (r.state = 4 OR r.forget_at <= statement_timestamp())` + sqlFinishedAt

const sqlFinished = `
INSERT INTO {records} AS r (id, scope, fingerprint, owner, fence, attempt, state, gone, result, claimed_at, settled_at, expires_at, forget_at, due_at,
	work, relay_due, class, name, ref)
VALUES ($1::bytea, $2::bytea, $3::bytea, $4::bytea, $5::bigint, $6::integer, $7::smallint, $8::boolean, $9::bytea, $10::timestamptz,
	statement_timestamp(), statement_timestamp() + $11::bigint * interval '1 microsecond',
	statement_timestamp() + $12::bigint * interval '1 microsecond', statement_timestamp() + $13::bigint * interval '1 microsecond',
	$15::bytea, CASE WHEN $15::bytea IS NOT NULL THEN statement_timestamp() END, $16::text, $17::text, $18::text)`

const sqlFinishedAt = `
RETURNING r.settled_at, (CASE WHEN NOT pg_try_advisory_xact_lock($14::bigint) THEN {tell} END) IS NULL, ` + audible

const sqlSettleTx = `
UPDATE {records} r SET state = $3::smallint, gone = $4::boolean, result = $5::bytea, lease_until = NULL,
	settled_at = statement_timestamp(), expires_at = statement_timestamp() + $6::bigint * interval '1 microsecond',
	forget_at = statement_timestamp() + $7::bigint * interval '1 microsecond',
	due_at = statement_timestamp() + $8::bigint * interval '1 microsecond',
	work = $9::bytea, run_due = NULL, relay_due = CASE WHEN $9::bytea IS NOT NULL THEN statement_timestamp() END, notes = NULL, cancel_at = NULL
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state IN (1, 5)
RETURNING {notify}`
