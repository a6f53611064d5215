package postgres

// The statements of accepted operations and of messages. All parameters have their
// types written out: some are for transactions of the service's, too, through pgx or
// database/sql.

// kept are columns, and what only a store.WorkStore keeps: see row.scanWhole.
const kept = columns + `, r.work, r.notes, r.cancel_at IS NOT NULL`

// sqlAccept is sqlInsert for operations that are to be run later. While they wait,
// lease_until is when they can be taken, whenever they are handed out.
const sqlAccept = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, lease_until, run_due, work, class, name, ref)
SELECT u.id, u.scope, u.fingerprint, u.owner, nextval({fence}::regclass), 6, 0,
	statement_timestamp(), statement_timestamp() + u.after, statement_timestamp() + u.after, u.work, u.class, u.name, u.ref
FROM (SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::interval[], $9::bytea[])
	AS u (id, scope, fingerprint, owner, class, name, ref, after, work) WHERE {unseen} ORDER BY id OFFSET 0) u
ON CONFLICT (id) DO NOTHING
RETURNING id, fence, claimed_at`

const sqlAcceptOne = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, lease_until, run_due, work, class, name, ref)
SELECT u.id, $2::bytea, $3::bytea, $4::bytea, nextval({fence}::regclass), 6, 0,
	statement_timestamp(), statement_timestamp() + $8::interval, statement_timestamp() + $8::interval, $9::bytea, $5::text, $6::text, $7::text
FROM (SELECT $1::bytea AS id) u WHERE {unseen}
ON CONFLICT (id) DO NOTHING
RETURNING id, fence, claimed_at`

const sqlAcceptTx = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, lease_until, run_due, work, class, name, ref)
VALUES ($1::bytea, $2::bytea, $3::bytea, $4::bytea, nextval({fence}::regclass), 6, 0,
	statement_timestamp(), statement_timestamp() + $8::bigint * interval '1 microsecond',
	statement_timestamp() + $8::bigint * interval '1 microsecond', $9::bytea, $5::text, $6::text, $7::text)
ON CONFLICT (id) DO NOTHING
RETURNING fence, claimed_at`

// sqlReaccept is sqlRegrant for operations that are to be run later.
const sqlReaccept = `
UPDATE {records} r SET scope = $2::bytea, fingerprint = $3::bytea, owner = $4::bytea, class = $5::text, name = $6::text, ref = $7::text,
	fence = nextval({fence}::regclass), state = 6,
	attempt = CASE WHEN r.forget_at <= statement_timestamp() THEN 0 ELSE r.attempt END,
	gone = false, watched = false, result = NULL, claimed_at = statement_timestamp(),
	lease_until = statement_timestamp() + $8::bigint * interval '1 microsecond',
	due_at = NULL, settled_at = NULL, expires_at = NULL, forget_at = NULL,
	notes = CASE WHEN r.forget_at > statement_timestamp() THEN r.notes END,
	run_due = statement_timestamp() + $8::bigint * interval '1 microsecond', work = $9::bytea
WHERE r.id = $1::bytea AND r.fence = $10::bigint AND (r.state = 4 OR r.forget_at <= statement_timestamp())
RETURNING ` + columns

// takeable is what is accepted and need not wait, or a dead run that may be repeated:
// one that is due when its lease has run out.
const takeable = `(r.state = 6 OR r.state = 1 AND r.run_due IS NOT NULL)
	AND (r.lease_until IS NULL OR r.lease_until <= statement_timestamp())`

// sqlTakeFree takes many, and skips those that somebody has locked.
const sqlTakeFree = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at, u.owner, u.lease, u.repeatable
	FROM unnest($1::bytea[], $2::bytea[], $3::interval[], $4::boolean[]) AS u (id, owner, lease, repeatable)
	JOIN {records} r ON r.id = u.id
	WHERE r.owner <> u.owner AND ` + takeable + `
	FOR UPDATE OF r SKIP LOCKED
)
UPDATE {records} r SET owner = l.owner, fence = nextval({fence}::regclass), state = 1, attempt = r.attempt + 1, watched = false,
	claimed_at = statement_timestamp(), settled_at = NULL, run_due = CASE WHEN l.repeatable THEN statement_timestamp() + l.lease END,
	lease_until = statement_timestamp() + l.lease, due_at = statement_timestamp() + l.lease
FROM l WHERE r.ctid = l.at
RETURNING ` + kept

const sqlTake = `
UPDATE {records} r SET owner = $2::bytea, fence = nextval({fence}::regclass), state = 1, attempt = r.attempt + 1, watched = false,
	claimed_at = statement_timestamp(), settled_at = NULL, run_due = CASE WHEN $4::boolean THEN statement_timestamp() + $3::interval END,
	lease_until = statement_timestamp() + $3::interval, due_at = statement_timestamp() + $3::interval
WHERE r.id = $1::bytea AND r.owner <> $2::bytea AND ` + takeable + `
RETURNING ` + kept

const sqlLook = `SELECT ` + kept + ` FROM {records} r WHERE r.id = $1::bytea`

const sqlGiveBack = `
UPDATE {records} r SET state = 6, settled_at = statement_timestamp(), due_at = NULL,
	lease_until = statement_timestamp() + $3::bigint * interval '1 microsecond',
	run_due = statement_timestamp() + $3::bigint * interval '1 microsecond'
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state IN (1, 5) AND r.work IS NOT NULL
RETURNING {notify}`

const sqlCancel = `
UPDATE {records} r SET state = 3, gone = $3::boolean, result = $4::bytea, settled_at = statement_timestamp(),
	expires_at = statement_timestamp() + $5::interval, forget_at = statement_timestamp() + $6::interval,
	due_at = statement_timestamp() + $7::interval, lease_until = NULL, run_due = NULL, work = NULL, notes = NULL, cancel_at = NULL
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = 6
RETURNING ` + kept

const sqlCancelRun = `
UPDATE {records} r SET cancel_at = coalesce(r.cancel_at, statement_timestamp())
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = 1 AND r.work IS NOT NULL
RETURNING ` + kept

// sqlSave compares versions, which are the first eight bytes, of a record that is in
// a {state}, and says with {repeats} whether its run is repeatable.
const sqlSave = `
UPDATE {records} r SET notes = CASE WHEN r.notes IS NULL OR substr(r.notes, 1, 8) < substr($3::bytea, 1, 8) THEN $3::bytea ELSE r.notes END{repeats}
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

// sqlDueRelay looks only at rows that are due, through an index, and skips those that
// others are at work on. What is too much together it leaves for later.
const sqlDueRelay = `
WITH d AS MATERIALIZED (
	SELECT r.ctid AS at, r.relay_due AS since, octet_length(r.work) AS size
	FROM {records} r WHERE r.relay_due <= statement_timestamp()
	ORDER BY r.relay_due LIMIT $1::bigint FOR UPDATE SKIP LOCKED
), ` + handedOut + `
SELECT ` + handOut + ` FROM u r ORDER BY r.since`

// sqlDueRun is sqlDueRelay for what is to be run, of some names. First it counts what
// waits of each, but no more than can be had, and divides the room equally; what a name
// has no use for is left to the others.
const sqlDueRun = `
WITH n AS MATERIALIZED (
	SELECT DISTINCT name FROM unnest($3::text[]) AS u (name)
), ` + divided + `
SELECT ` + handOut + ` FROM u r ORDER BY r.since`

// sqlDueAny is sqlDueRun for those names from $3 on under which something waits, and no
// more of them than can be asked for. It says first where to go on, if there are
// others.
const sqlDueAny = `
WITH RECURSIVE walked AS (
	SELECT (SELECT r.name FROM {records} r WHERE r.run_due IS NOT NULL AND r.name >= $3::text ORDER BY r.name LIMIT 1) AS name, 1 AS nth
	UNION ALL
	SELECT (SELECT r.name FROM {records} r WHERE r.run_due IS NOT NULL AND r.name > w.name ORDER BY r.name LIMIT 1), w.nth + 1
	FROM walked w WHERE w.name IS NOT NULL AND w.nth <= {names}
), n AS MATERIALIZED (
	SELECT name FROM walked WHERE name IS NOT NULL AND nth <= {names}
), ` + divided + `
SELECT t.next, ` + handOut + `
FROM (SELECT max(name) AS next FROM walked WHERE nth > {names}) t LEFT JOIN u r ON true ORDER BY r.since`

const divided = `waiting AS MATERIALIZED (
	SELECT n.name, w.nth FROM n, LATERAL (
		SELECT row_number() OVER () AS nth FROM (
			SELECT FROM {records} r WHERE r.name = n.name AND r.run_due <= statement_timestamp() ORDER BY r.run_due LIMIT $1::bigint
		) first
	) w
), shares AS MATERIALIZED (
	SELECT s.name, count(*) AS share FROM (SELECT name FROM waiting ORDER BY nth, random() LIMIT $1::bigint) s GROUP BY s.name
), d AS MATERIALIZED (
	SELECT w.* FROM shares s, LATERAL (
		SELECT r.ctid AS at, r.run_due AS since, octet_length(r.work) AS size
		FROM {records} r WHERE r.name = s.name AND r.run_due <= statement_timestamp()
		ORDER BY r.run_due LIMIT s.share FOR UPDATE SKIP LOCKED
	) w
), ` + handedOut

const handedOut = `h AS MATERIALIZED (
	SELECT at, since, size, sum(size) OVER (ORDER BY since, at) AS total FROM d
), u AS (
	UPDATE {records} r SET {due} = statement_timestamp() + $2::bigint * interval '1 microsecond'
	FROM h WHERE r.ctid = h.at AND (h.total <= {most} OR h.total = h.size)
	RETURNING r.*, h.since
)`

const handOut = columns + `, r.work, NULL::bytea, false`
