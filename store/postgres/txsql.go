package postgres

// The statements that begin transactions, for pgx and database/sql.

// sqlEnter takes the key's lock for the transaction, publishes the fingerprint by a second lock,
// draws the fence, and reads the record. If the key is locked, it tries the second lock of its
// own fingerprint: if that is taken (0), the same request is running; if it is free (-1), the
// running request may be another one. For a settled record nothing is locked.
//
// The statement sees the record as of its start. If another transaction has committed and
// released the lock since then, within microseconds, its record keeps this one from committing.
var sqlEnter = `
SELECT CASE
	WHEN r.state IN ({completed}, {failed}) AND (r.forget_at IS NULL OR r.forget_at > statement_timestamp()) THEN 0
	WHEN pg_try_advisory_xact_lock($1::bigint) THEN
		CASE WHEN pg_try_advisory_xact_lock($2::integer, $3::integer) THEN nextval({fence}::regclass) ELSE nextval({fence}::regclass) END
	WHEN pg_try_advisory_xact_lock_shared($2::integer, $3::integer) THEN -1
	ELSE 0 END, ` + selected(columns) + `
FROM (SELECT 1) one LEFT JOIN {records} r ON r.id = $4::bytea`

// sqlLockOther takes the lock of a second key, if it is free.
const sqlLockOther = `SELECT pg_try_advisory_xact_lock($1::bigint)`

// sqlConcurrent reports whether the transaction that has the key's lock has published
// another fingerprint.
const sqlConcurrent = `
SELECT EXISTS (
	SELECT FROM pg_locks k JOIN pg_locks f ON f.pid = k.pid OR
		f.pid IS NULL AND k.pid IS NULL AND f.virtualtransaction = k.virtualtransaction
	WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.mode = 'ExclusiveLock'
		AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND k.classid = $1::bigint::oid AND k.objid = $2::bigint::oid
		AND f.locktype = 'advisory' AND f.objsubid = 2 AND f.granted AND f.mode = 'ExclusiveLock' AND f.database = k.database
		AND f.classid = $3::bigint::oid AND f.objid <> $4::bigint::oid)`

// sqlEnterGroup is sqlEnter for many keys without a record: it returns 0 for a key that is
// running or has a record. It is not a join, because with the service's settings the planner
// might scan a table that was empty a moment ago. It publishes no fingerprints, which would be
// another lock for each key: to others the key is in flight, for every request.
const sqlEnterGroup = `
SELECT CASE WHEN (SELECT r.id FROM {records} r WHERE r.id = u.id) IS NULL AND pg_try_advisory_xact_lock(u.key) THEN
	nextval({fence}::regclass) ELSE 0 END, statement_timestamp(), ` + replicated + `
FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS u (key, id, n)
ORDER BY u.n`

// sqlTellGroup tells the callers that wait for one of these keys. It has no more than one lock
// at a time.
const sqlTellGroup = `
SELECT CASE WHEN CASE WHEN pg_try_advisory_lock(u.waiters) THEN NOT pg_advisory_unlock(u.waiters) ELSE true END THEN pg_notify({channel}, encode(u.id, 'hex')) END
FROM unnest($1::bytea[], $2::bigint[]) AS u (id, waiters)`
