package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/stet-go/stet/store"
)

// columns are those of a row, in the order of row.scan. The clock is
// statement_timestamp everywhere: when the statement reached the server. now()
// would be the beginning of a transaction that may be long.
const columns = `r.id, r.scope, r.fingerprint, r.owner, r.fence, r.state, r.attempt, r.gone,
	r.claimed_at, r.lease_until, r.settled_at, r.expires_at, r.forget_at, r.result, r.class, r.name, r.ref, statement_timestamp(), ` + replicated

// statements are the SQL of a store, with its names put in.
type statements struct {
	insert, end, read, extend            *statement // for many at a time
	insertOne, endFree, endOne, regrant  *statement // for one at a time
	park, watch, sweep, confirm          *statement
	browse, browseOpen, expire, replace  *statement // of operators
	finish, finishClaim, commit, audible *statement // of transactions, on connections of the service's

	accept, acceptOne, reaccept, take, look, giveBack                  *statement // of accepted operations
	cancel, cancelRun, save, strike, dueRun, dueAny, dueRelay, relayed *statement
	takeFree, relayedFree                                              *statement

	enter, load, rival, commitNew, commitOld string // of transactions; for pgx
	settleTx, acceptTx, reacceptTx, saveTx   string
	enterGroup, finishGroup, tellGroup       string
}

// sqlInsert claims keys that nobody has used. A fence is drawn after the sort,
// row by row, as close to the insertion as can be: between the two another
// claim of the key would have to come, end and be forgotten for fences to be
// granted out of order. Rows are sorted so that two batches that wait for each
// other's insertions cannot do so in a circle.
//
// To insert a key waits for any transaction that has changed its record, which may
// be open for long (SettleTx). So a key whose record is to be seen is not tried. One
// that is being inserted elsewhere (AcceptTx) cannot be seen: see rowPatience.
const sqlInsert = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, lease_until, due_at, class, name, ref)
SELECT u.id, u.scope, u.fingerprint, u.owner, nextval({fence}::regclass), 1, 1,
	statement_timestamp(), statement_timestamp() + u.lease, statement_timestamp() + u.lease, u.class, u.name, u.ref
FROM (SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::interval[])
	AS u (id, scope, fingerprint, owner, class, name, ref, lease) WHERE {unseen} ORDER BY id OFFSET 0) u
ON CONFLICT (id) DO NOTHING
RETURNING id, fence, claimed_at`

// sqlEnd settles and releases. It skips rows that others have locked: a
// service may hold one for long in a transaction of its own (SettleTx), and
// the rest of the batch must not wait for that. Those skipped are dealt with one
// by one, and so are releases of accepted operations, which are another matter.
const sqlEnd = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at, u.*
	FROM unnest($1::bytea[], $2::bigint[], $3::smallint[], $4::boolean[], $5::bytea[], $6::interval[], $7::interval[], $8::interval[], $9::bytea[])
		AS u (id, fence, state, gone, result, keep, forget, due, outbox)
	JOIN {records} r ON r.id = u.id
	WHERE r.fence = u.fence AND r.state IN (1, 5) AND (u.state <> 4 OR r.work IS NULL)
	FOR UPDATE OF r SKIP LOCKED
)
UPDATE {records} r SET state = l.state, gone = l.gone, result = l.result, lease_until = NULL,
	settled_at = statement_timestamp(), expires_at = statement_timestamp() + l.keep,
	forget_at = statement_timestamp() + l.forget, due_at = statement_timestamp() + l.due,
	work = l.outbox, run_due = NULL, relay_due = CASE WHEN l.outbox IS NOT NULL THEN statement_timestamp() END,
	notes = CASE WHEN l.state = 4 THEN r.notes END, cancel_at = NULL
FROM l WHERE r.ctid = l.at
RETURNING r.id, {notify}`

// sqlEndFree is sqlEnd for one call.
const sqlEndFree = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at FROM {records} r
	WHERE r.id = $1 AND r.fence = $2 AND r.state IN (1, 5) AND ($3::smallint <> 4 OR r.work IS NULL) FOR UPDATE SKIP LOCKED
)
UPDATE {records} r SET state = $3::smallint, gone = $4, result = $5, lease_until = NULL,
	settled_at = statement_timestamp(), expires_at = statement_timestamp() + $6::interval,
	forget_at = statement_timestamp() + $7::interval, due_at = statement_timestamp() + $8::interval,
	work = $9::bytea, run_due = NULL, relay_due = CASE WHEN $9::bytea IS NOT NULL THEN statement_timestamp() END,
	notes = CASE WHEN $3::smallint = 4 THEN r.notes END, cancel_at = NULL
FROM l WHERE r.ctid = l.at
RETURNING r.id, {notify}`

// sqlEndOne waits for whoever has locked the row.
const sqlEndOne = `
UPDATE {records} r SET state = $3::smallint, gone = $4, result = $5, lease_until = NULL,
	settled_at = statement_timestamp(), expires_at = statement_timestamp() + $6::interval,
	forget_at = statement_timestamp() + $7::interval, due_at = statement_timestamp() + $8::interval,
	work = $9::bytea, run_due = NULL, relay_due = CASE WHEN $9::bytea IS NOT NULL THEN statement_timestamp() END,
	notes = CASE WHEN $3::smallint = 4 THEN r.notes END, cancel_at = NULL
WHERE r.id = $1 AND r.fence = $2 AND r.state IN (1, 5) AND ($3::smallint <> 4 OR r.work IS NULL)
RETURNING r.id, {notify}`

const sqlInsertOne = `
INSERT INTO {records} (id, scope, fingerprint, owner, fence, state, attempt, claimed_at, lease_until, due_at, class, name, ref)
SELECT u.id, $2::bytea, $3::bytea, $4::bytea, nextval({fence}::regclass), 1, 1,
	statement_timestamp(), statement_timestamp() + $8::interval, statement_timestamp() + $8::interval, $5::text, $6::text, $7::text
FROM (SELECT $1::bytea AS id) u WHERE {unseen}
ON CONFLICT (id) DO NOTHING
RETURNING id, fence, claimed_at`

const sqlRead = `SELECT ` + columns + `, r.cancel_at IS NOT NULL FROM {records} r WHERE r.id = ANY ($1::bytea[])`

const sqlExtend = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at FROM unnest($1::bytea[], $2::bigint[]) AS u (id, fence)
	JOIN {records} r ON r.id = u.id
	WHERE r.fence = u.fence AND r.state = 1
	FOR UPDATE OF r SKIP LOCKED
)
UPDATE {records} r SET lease_until = statement_timestamp() + $3::interval, due_at = statement_timestamp() + $3::interval,
	run_due = CASE WHEN r.run_due IS NOT NULL THEN greatest(r.run_due, statement_timestamp() + $3::interval) END
FROM l WHERE r.ctid = l.at
RETURNING r.id, r.fence`

// sqlRegrant grants a record that there is, if it still is as it was seen:
// retryable, or forgotten.
const sqlRegrant = `
UPDATE {records} r SET scope = $2, fingerprint = $3, owner = $4, class = $5, name = $6, ref = $7,
	fence = nextval({fence}::regclass), state = 1,
	attempt = CASE WHEN r.forget_at <= statement_timestamp() THEN 1 ELSE r.attempt + 1 END,
	gone = false, watched = false, result = NULL, claimed_at = statement_timestamp(),
	lease_until = statement_timestamp() + $8::interval, due_at = statement_timestamp() + $8::interval,
	settled_at = NULL, expires_at = NULL, forget_at = NULL,
	notes = CASE WHEN r.forget_at > statement_timestamp() THEN r.notes END
WHERE r.id = $1 AND r.fence = $9 AND (r.state = 4 OR r.forget_at <= statement_timestamp())
RETURNING ` + columns

// dead is what becomes of a dead run: unknown, or accepted if it may be repeated, as
// it is due already then.
const dead = `state = CASE WHEN r.run_due IS NULL THEN 5 ELSE 6 END, settled_at = statement_timestamp(), due_at = NULL,
	lease_until = CASE WHEN r.run_due IS NOT NULL THEN statement_timestamp() END`

const sqlPark = `
UPDATE {records} r SET ` + dead + `
WHERE r.id = $1 AND r.fence = $2 AND r.state = 1 AND r.lease_until <= statement_timestamp()
RETURNING ` + columns + `, {notify}`

// sqlWatch asks for a notification. A row that somebody has locked is about to
// change, and is skipped.
const sqlWatch = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at FROM {records} r WHERE r.id = $1 AND r.fence = $2 AND r.state = 1 AND NOT r.watched
	FOR UPDATE SKIP LOCKED
)
UPDATE {records} r SET watched = true FROM l WHERE r.ctid = l.at`

// sqlSweep looks only at rows that are due, through an index, and skips those
// that others are at work on.
const sqlSweep = `
WITH d AS MATERIALIZED (
	SELECT r.ctid AS at, r.state,
		r.state = 1 AND r.lease_until <= statement_timestamp() AS dead,
		coalesce(r.forget_at <= statement_timestamp(), false) AS forgotten
	FROM {records} r WHERE r.due_at <= statement_timestamp() AND ` + readable + `
	ORDER BY r.due_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED
), parked AS (
	UPDATE {records} r SET ` + dead + `
	FROM d WHERE r.ctid = d.at AND d.dead RETURNING r.state, {notify}
), expired AS (
	UPDATE {records} r SET gone = true, result = NULL, due_at = r.forget_at
	FROM d WHERE r.ctid = d.at AND d.state IN (2, 3) AND NOT d.forgotten RETURNING 1
), purged AS (
	DELETE FROM {records} r USING d WHERE r.ctid = d.at AND d.state <> 1 AND d.forgotten RETURNING 1
)
SELECT (SELECT count(*) FROM d), (SELECT count(*) FROM parked WHERE state = 5), (SELECT count(*) FROM expired), (SELECT count(*) FROM purged)`

// patience bounds how long what follows in the same transaction waits for a lock.
var patience = &statement{sql: fmt.Sprintf("SELECT set_config('lock_timeout', '%d', true), set_config('statement_timeout', '%d', true), "+audible,
	rowPatience.Milliseconds(), statementTimeout.Milliseconds()), reads: true}

// reading marks a statement that writes nothing.
func reading(st *statement) *statement {
	st.reads = true
	return st
}

func dueSQL(sql, due string) string { return strings.ReplaceAll(sql, "{due}", due) }

// saveSQL is sqlSave for a run, or for what is unknown.
func saveSQL(runs bool) string {
	state, repeats := "5", ""
	if runs {
		state, repeats = "1", ", run_due = CASE WHEN $4::boolean AND r.work IS NOT NULL THEN coalesce(r.run_due, r.lease_until) END"
	}
	return strings.NewReplacer("{state}", state, "{repeats}", repeats).Replace(sqlSave)
}

// asking are the types of params.asking, one of each or many, and of what follows.
func asking(many bool, more ...uint32) []uint32 {
	digest, text := uint32(oidBytes), uint32(oidText)
	if many {
		digest, text = oidBytesA, oidTextA
	}
	return append([]uint32{digest, digest, digest, digest, text, text, text}, more...)
}

func newStatements(n names) statements {
	notify := "(CASE WHEN r.watched THEN pg_notify(" + literal(n.channel) + ", encode(r.id, 'hex')) END) IS NULL"
	tell := "pg_notify(" + literal(n.channel) + ", encode($1, 'hex'))"
	unseen := /* not a join, for which the planner may read the whole table */ "(SELECT r.id FROM " + n.records + " r WHERE r.id = u.id) IS NULL"
	fill := strings.NewReplacer("{records}", n.records, "{unseen}", unseen, "{fence}", literal(n.fence), "{notify}", notify, "{tell}", tell,
		"{tell each}", strings.Replace(tell, "$1", "u.id", 1), "{most}", strconv.Itoa(dueBytes), "{names}", strconv.Itoa(store.MaxDueNames)).Replace
	make := func(name, sql string, oids ...uint32) *statement {
		return &statement{name: "stet_" + name, sql: fill(sql), oids: oids}
	}
	ending := []uint32{oidBytesA, oidInt64A, oidInt16A, oidBoolA, oidBytesA, oidSpanA, oidSpanA, oidSpanA, oidBytesA}
	filter := []uint32{oidInt64, oidInt64, oidInt16A, oidBytes, oidInterval, oidInterval}
	return statements{
		insert:    make("insert", sqlInsert, asking(true, oidSpanA)...),
		end:       make("end", sqlEnd, ending...),
		endOne:    make("end_one", sqlEndOne, oidBytes, oidInt64, oidInt16, oidBool, oidBytes, oidInterval, oidInterval, oidInterval, oidBytes),
		endFree:   make("end_free", sqlEndFree, oidBytes, oidInt64, oidInt16, oidBool, oidBytes, oidInterval, oidInterval, oidInterval, oidBytes),
		insertOne: make("insert_one", sqlInsertOne, asking(false, oidInterval)...),
		read:      reading(make("read", sqlRead, oidBytesA)),
		extend:    make("extend", sqlExtend, oidBytesA, oidInt64A, oidInterval),
		regrant:   make("regrant", sqlRegrant, asking(false, oidInterval, oidInt64)...),
		park:      make("park", sqlPark, oidBytes, oidInt64),
		watch:     make("watch", sqlWatch, oidBytes, oidInt64),
		sweep:     make("sweep", sqlSweep, oidInt64),
		confirm:   make("confirm", sqlConfirm),

		browse:     reading(make("browse", sqlBrowse, append([]uint32{oidBytes, oidBytes}, filter...)...)),
		browseOpen: reading(make("browse_open", sqlBrowseOpen, append([]uint32{oidInt64}, filter...)...)),
		expire:     make("expire", sqlExpire, oidBytes, oidInt64),
		replace:    make("replace", sqlReplace, oidBytes, oidInt64, oidBytes),

		accept:      make("accept", sqlAccept, asking(true, oidSpanA, oidBytesA)...),
		acceptOne:   make("accept_one", sqlAcceptOne, asking(false, oidInterval, oidBytes)...),
		reaccept:    make("reaccept", sqlReaccept, asking(false, oidInt64, oidBytes, oidInt64)...),
		take:        make("take", sqlTake, oidBytes, oidBytes, oidInterval, oidBool),
		takeFree:    make("take_free", sqlTakeFree, oidBytesA, oidBytesA, oidSpanA, oidBoolA),
		look:        reading(make("look", sqlLook, oidBytes)),
		giveBack:    make("give_back", sqlGiveBack, oidBytes, oidInt64, oidInt64),
		cancel:      make("cancel", sqlCancel, oidBytes, oidInt64, oidBool, oidBytes, oidInterval, oidInterval, oidInterval),
		cancelRun:   make("cancel_run", sqlCancelRun, oidBytes, oidInt64),
		save:        make("save", saveSQL(true), oidBytes, oidInt64, oidBytes, oidBool),
		strike:      make("strike", saveSQL(false), oidBytes, oidInt64, oidBytes),
		dueRun:      make("due_run", dueSQL(sqlDueRun, "run_due"), oidInt64, oidInt64, oidTextA),
		dueAny:      make("due_any", dueSQL(sqlDueAny, "run_due"), oidInt64, oidInt64, oidText),
		dueRelay:    make("due_relay", dueSQL(sqlDueRelay, "relay_due"), oidInt64, oidInt64),
		relayed:     make("relayed", sqlRelayed, oidBytes, oidInt64, oidInt64),
		relayedFree: make("relayed_free", sqlRelayedFree, oidBytesA, oidInt64A, oidSpanA),

		// Stores with other tables may use the same connections.
		finish: make(fmt.Sprintf("finish_%016x", hash64("finish", n.schema, n.table)), sqlCommitNew, oidBytes, oidBytes, oidBytes, oidBytes, oidInt64,
			oidInt32, oidInt16, oidBool, oidBytes, oidTime, oidInt64, oidInt64, oidInt64, oidInt64, oidBytes, oidText, oidText, oidText),
		finishClaim: make(fmt.Sprintf("finish_claim_%016x", hash64("finish", n.schema, n.table)), sqlFinish, oidBytes, oidInt64, oidInt16, oidBool, oidBytes,
			oidInt64, oidInt64, oidInt64, oidBytes),
		commit: make("commit", "commit"), audible: make("audible", "SELECT "+audible),

		enter:     fill(sqlEnter),
		load:      fill(sqlLoad),
		rival:     fill(sqlRival),
		commitNew: fill(sqlCommitNew),
		commitOld: fill(sqlCommitOld),
		settleTx:  fill(sqlSettleTx),

		acceptTx:   fill(sqlAcceptTx),
		reacceptTx: fill(sqlReaccept),
		saveTx:     fill(saveSQL(true)),

		enterGroup:  fill(sqlEnterGroup),
		finishGroup: fill(sqlFinishGroup),
		tellGroup:   fill(sqlTellGroup),
	}
}
