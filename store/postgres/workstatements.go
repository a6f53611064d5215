package postgres

import "strings"

// The statements of accepted operations and of messages.

// kept are columns with work and notes.
var kept = selected(allColumns)

// takeable selects accepted records that need not wait, and expired runs that may be repeated:
// they are due when their lease has expired.
const takeable = `(r.state = {accepted} OR r.state = {running} AND r.run_due IS NOT NULL)
	AND (r.lease_until IS NULL OR r.lease_until <= statement_timestamp())`

// toTaken is what becomes of it.
var toTaken = assignments{{"owner", "e.owner"}, {"fence", "nextval({fence}::regclass)"}, {"state", "{running}"}, {"attempt", "r.attempt + 1"},
	{"watched", "false"}, {"claimed_at", now}, {"settled_at", "NULL"}, {"run_due", "CASE WHEN e.repeatable THEN " + later("e.lease") + " END"},
	{"lease_until", later("e.lease")}, {"due_at", later("e.lease")}}.set()

const sqlGiveBack = `
UPDATE {records} r SET state = {accepted}, settled_at = statement_timestamp(), due_at = NULL,
	lease_until = statement_timestamp() + $3::bigint * interval '1 microsecond',
	run_due = statement_timestamp() + $3::bigint * interval '1 microsecond'
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state IN ({running}, {unknown}) AND r.work IS NOT NULL
RETURNING {notify}`

var sqlCancelRun = `
UPDATE {records} r SET cancel_at = coalesce(r.cancel_at, statement_timestamp())
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = {running} AND r.work IS NOT NULL
RETURNING ` + kept

// sqlSave compares versions, which are the first eight bytes, of a record that is in
// a {state}, and says with {repeats} whether its run is repeatable.
const sqlSave = `
UPDATE {records} r SET notes = CASE WHEN r.notes IS NULL OR substr(r.notes, 1, 8) < substr($3::bytea, 1, 8) THEN $3::bytea ELSE r.notes END{repeats}
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = {state} AND (r.notes IS NULL OR substr(r.notes, 1, 8) <= substr($3::bytea, 1, 8))
RETURNING true`

// toRelayed is what becomes of a record whose messages have left.
var toRelayed = assignments{{"work", "NULL"}, {"relay_due", "NULL"}, {"forget_at", later("e.keep")},
	{"due_at", "CASE WHEN r.gone THEN " + later("e.keep") + " ELSE least(r.expires_at, " + later("e.keep") + ") END"}}.set()

// saveSQL is the statement of Save, or of Amend.
func saveSQL(runs bool) string {
	state, repeats := "{unknown}", ""
	if runs {
		state, repeats = "{running}", ", run_due = CASE WHEN $4::boolean AND r.work IS NOT NULL THEN coalesce(r.run_due, r.lease_until) END"
	}
	return strings.NewReplacer("{state}", state, "{repeats}", repeats).Replace(sqlSave)
}

func dueSQL(sql, due string) string { return strings.ReplaceAll(sql, "{due}", due) }

// sqlDueRelay reads only due rows, through an index, and skips locked ones. Rows beyond the
// size limit stay for later.
var sqlDueRelay = `
WITH d AS MATERIALIZED (
	SELECT r.ctid AS at, r.relay_due AS since, octet_length(r.work) AS size
	FROM {records} r WHERE r.relay_due <= statement_timestamp()
	ORDER BY r.relay_due LIMIT $1::bigint FOR NO KEY UPDATE SKIP LOCKED
), ` + handedOut + `
SELECT ` + handOut + ` FROM u r ORDER BY r.since`

// sqlDueRun is sqlDueRelay for operations to run, of some names. First it counts what
// waits of each, but no more than can be had, and divides the room equally; what a name
// has no use for is left to the others.
var sqlDueRun = `
WITH n AS MATERIALIZED (
	SELECT DISTINCT name FROM unnest($3::text[]) AS u (name)
), ` + divided + `
SELECT ` + handOut + ` FROM u r ORDER BY r.since`

// sqlDueAny is sqlDueRun for those names from $3 on under which something waits, and no
// more of them than can be asked for. It says first where to continue, if there are
// others.
var sqlDueAny = `
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
		ORDER BY r.run_due LIMIT s.share FOR NO KEY UPDATE SKIP LOCKED
	) w
), ` + handedOut

const handedOut = `h AS MATERIALIZED (
	SELECT at, since, size, sum(size) OVER (ORDER BY since, at) AS total FROM d
), u AS (
	UPDATE {records} r SET {due} = statement_timestamp() + $2::bigint * interval '1 microsecond'
	FROM h WHERE r.ctid = h.at AND (h.total <= {most} OR h.total = h.size)
	RETURNING r.*, h.since
)`

var handOut = selected(columns) + ", r.work, NULL::bytea"
