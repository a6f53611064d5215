package postgres

// The statements of accepted operations and of messages. All parameters have their
// types written out: some are for transactions of the service's, too, through pgx or
// database/sql.

// kept are columns, and what only a stet.WorkStore keeps: see row.scanWhole.
const kept = columns + `, r.work, r.notes, r.cancel_at IS NOT NULL`

// sqlAccept is sqlInsert for operations that are to be run later.
const sqlAccept = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, run_due, work)
SELECT u.id, u.scope, u.fingerprint, u.owner, nextval({fence}::regclass), 6, 0,
	statement_timestamp(), statement_timestamp() + u.after, u.work
FROM (SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::interval[], $6::bytea[])
	AS u (id, scope, fingerprint, owner, after, work) ORDER BY id OFFSET 0) u
ON CONFLICT (id) DO NOTHING
RETURNING id, fence, claimed_at`

// sqlAcceptOne waits for a transaction that is inserting the same key.
const sqlAcceptOne = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, run_due, work)
VALUES ($1::bytea, $2::bytea, $3::bytea, $4::bytea, nextval({fence}::regclass), 6, 0,
	statement_timestamp(), statement_timestamp() + $5::interval, $6::bytea)
ON CONFLICT (id) DO NOTHING
RETURNING id, fence, claimed_at`

const sqlAcceptTx = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, run_due, work)
VALUES ($1::bytea, $2::bytea, $3::bytea, $4::bytea, nextval({fence}::regclass), 6, 0,
	statement_timestamp(), statement_timestamp() + $5::bigint * interval '1 microsecond', $6::bytea)
ON CONFLICT (id) DO NOTHING
RETURNING fence, claimed_at`

// sqlReaccept is sqlRegrant for operations that are to be run later.
const sqlReaccept = `
UPDATE {records} r SET scope = $2::bytea, fingerprint = $3::bytea, owner = $4::bytea, fence = nextval({fence}::regclass), state = 6,
	attempt = CASE WHEN r.forget_at <= statement_timestamp() THEN 0 ELSE r.attempt END,
	gone = false, watched = false, result = NULL, claimed_at = statement_timestamp(),
	lease_until = NULL, due_at = NULL, settled_at = NULL, expires_at = NULL, forget_at = NULL,
	notes = CASE WHEN r.forget_at > statement_timestamp() THEN r.notes END,
	run_due = statement_timestamp() + $5::bigint * interval '1 microsecond', work = $6::bytea
WHERE r.id = $1::bytea AND r.fence = $7::bigint AND (r.state = 4 OR r.forget_at <= statement_timestamp())
RETURNING ` + columns

// sqlTakeFree takes many, and skips those that somebody has locked.
const sqlTakeFree = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at, u.owner, u.lease FROM unnest($1::bytea[], $2::bytea[], $3::interval[]) AS u (id, owner, lease)
	JOIN {records} r ON r.id = u.id
	WHERE r.state = 6 AND r.owner <> u.owner
	FOR UPDATE OF r SKIP LOCKED
)
UPDATE {records} r SET owner = l.owner, fence = nextval({fence}::regclass), state = 1, attempt = r.attempt + 1, watched = false,
	claimed_at = statement_timestamp(), settled_at = NULL, run_due = NULL,
	lease_until = statement_timestamp() + l.lease, due_at = statement_timestamp() + l.lease
FROM l WHERE r.ctid = l.at
RETURNING ` + kept

const sqlTake = `
UPDATE {records} r SET owner = $2::bytea, fence = nextval({fence}::regclass), state = 1, attempt = r.attempt + 1, watched = false,
	claimed_at = statement_timestamp(), settled_at = NULL, run_due = NULL,
	lease_until = statement_timestamp() + $3::interval, due_at = statement_timestamp() + $3::interval
WHERE r.id = $1::bytea AND r.state = 6 AND r.owner <> $2::bytea
RETURNING ` + kept

const sqlLook = `SELECT ` + kept + ` FROM {records} r WHERE r.id = $1::bytea`

// sqlGiveBack waits for whoever has locked the row: a transaction that settles it,
// and whose COMMIT was not answered, for one. Its fate is known then.
const (
	sqlGiveBack     = sqlReturned + ` WHERE ` + sqlReturnable + ` RETURNING {notify}`
	sqlGiveBackFree = `
WITH l AS MATERIALIZED (SELECT r.ctid AS at FROM {records} r WHERE ` + sqlReturnable + ` FOR UPDATE SKIP LOCKED)` +
		sqlReturned + ` FROM l WHERE r.ctid = l.at RETURNING {notify}`

	sqlReturned = `
UPDATE {records} r SET state = 6, settled_at = statement_timestamp(), lease_until = NULL, due_at = NULL,
	run_due = statement_timestamp() + $3::bigint * interval '1 microsecond'`
	sqlReturnable = `r.id = $1::bytea AND r.fence = $2::bigint AND r.state IN (1, 5) AND r.work IS NOT NULL`
)

const sqlCancel = `
UPDATE {records} r SET state = 3, gone = $3::boolean, result = $4::bytea, settled_at = statement_timestamp(),
	expires_at = statement_timestamp() + $5::interval, forget_at = statement_timestamp() + $6::interval,
	due_at = statement_timestamp() + $7::interval, run_due = NULL, work = NULL, notes = NULL, cancel_at = NULL
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = 6
RETURNING ` + kept

const sqlCancelRun = `
UPDATE {records} r SET cancel_at = coalesce(r.cancel_at, statement_timestamp())
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = 1 AND r.work IS NOT NULL
RETURNING ` + kept

// sqlSave compares versions, which are the first eight bytes, of a record that is in
// a {state}.
const sqlSave = `
UPDATE {records} r SET notes = CASE WHEN r.notes IS NULL OR substr(r.notes, 1, 8) < substr($3::bytea, 1, 8) THEN $3::bytea ELSE r.notes END
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = {state} AND (r.notes IS NULL OR substr(r.notes, 1, 8) <= substr($3::bytea, 1, 8))
RETURNING true`

const sqlRelayed = `
UPDATE {records} r SET work = NULL, relay_due = NULL, forget_at = statement_timestamp() + $3::bigint * interval '1 microsecond',
	due_at = CASE WHEN r.gone THEN statement_timestamp() + $3::bigint * interval '1 microsecond'
		ELSE least(r.expires_at, statement_timestamp() + $3::bigint * interval '1 microsecond') END
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state IN (2, 3) AND r.work IS NOT NULL
RETURNING true`

// sqlRelayedFree is sqlRelayed for many, and skips those that somebody has locked.
const sqlRelayedFree = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at, u.keep FROM unnest($1::bytea[], $2::bigint[], $3::interval[]) AS u (id, fence, keep)
	JOIN {records} r ON r.id = u.id
	WHERE r.fence = u.fence AND r.state IN (2, 3) AND r.work IS NOT NULL
	FOR UPDATE OF r SKIP LOCKED
)
UPDATE {records} r SET work = NULL, relay_due = NULL, forget_at = statement_timestamp() + l.keep,
	due_at = CASE WHEN r.gone THEN statement_timestamp() + l.keep ELSE least(r.expires_at, statement_timestamp() + l.keep) END
FROM l WHERE r.ctid = l.at
RETURNING r.id`

// sqlDue looks only at rows that are due, through an index, and skips those that
// others are at work on. What is too much together it leaves for later.
const sqlDue = `
WITH d AS MATERIALIZED (
	SELECT r.ctid AS at, r.{due} AS since, octet_length(r.work) AS size
	FROM {records} r WHERE r.{due} <= statement_timestamp()
	ORDER BY r.{due} LIMIT $1::bigint FOR UPDATE SKIP LOCKED
), h AS MATERIALIZED (
	SELECT at, since, size, sum(size) OVER (ORDER BY since, at) AS total FROM d
), u AS (
	UPDATE {records} r SET {due} = statement_timestamp() + $2::bigint * interval '1 microsecond'
	FROM h WHERE r.ctid = h.at AND (h.total <= {most} OR h.total = h.size)
	RETURNING r.*, h.since
)
SELECT ` + columns + `, r.work, NULL::bytea, false FROM u r ORDER BY r.since`
