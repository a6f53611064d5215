package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stet-go/stet/store"
)

// The statements are made from the columns and parameters of columns.go. In their
// templates r is a record, e are the parameters, and states are called by their names.
// All parameters have their types written out, so that they work in every mode of
// every driver.

// statements are the SQL of a store, with its names put in.
type statements struct {
	leaseStatements
	workStatements
	txStatements
	operatorStatements
}

// leaseStatements are the statements of claims under a lease.
type leaseStatements struct {
	insert, end, read, extend          *statement // for many at a time
	insertOne, endOne, regrant         *statement // for one at a time
	markUnknown, watch, sweep, confirm *statement
}

// operatorStatements are the statements of operators.
type operatorStatements struct {
	browse, browseOpen, expire, replace *statement
	addHistory, history                 *statement
}

// workStatements are the statements of accepted operations and their messages.
type workStatements struct {
	acceptStatements
	cancel, cancelRun, save, amend *statement
	dueRun, dueAny                 *statement
	dueRelay, relayed, relayedFree *statement
}

type acceptStatements struct {
	accept, acceptOne, reaccept, take, takeFree, look, giveBack *statement
}

// txStatements are the statements of transactions, on connections of the service's.
type txStatements struct {
	finish, finishOld, audible         *statement
	enter, load, concurrent            *statement // for pgx
	enterGroup, finishGroup, tellGroup *statement
}

// change is an update of records that are as where says.
type change struct {
	params                []param
	set, where, returning string
}

// waiting is the change of one record. It waits for the transaction that has locked the row.
func (c change) waiting() string {
	return "UPDATE {records} r SET " + c.set + " FROM " + one(c.params) + " WHERE r.id = e.id AND " + c.where + " RETURNING " + c.returning
}

// free is the change of those of the rows e that are not locked: a service may hold
// one for long in a transaction of its own (SettleTx), and the rest of the batch must
// not wait for that. Those skipped are dealt with one by one.
func (c change) free(e string) string {
	return `WITH l AS MATERIALIZED (
	SELECT r.ctid AS at, e.* FROM ` + e + ` JOIN {records} r ON r.id = e.id WHERE ` + c.where + ` FOR NO KEY UPDATE OF r SKIP LOCKED
) UPDATE {records} r SET ` + c.set + ` FROM l e WHERE r.ctid = e.at RETURNING ` + c.returning
}

// assignments are columns and their new values.
type assignments [][2]string

func (a assignments) set() string {
	var all []string
	for _, to := range a {
		all = append(all, to[0]+" = "+to[1])
	}
	return strings.Join(all, ", ")
}

// insert inserts them from a table e.
func (a assignments) insert(e string) string {
	var names, values []string
	for _, to := range a {
		names, values = append(names, to[0]), append(values, to[1])
	}
	return "INSERT INTO {records} AS r (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(values, ", ") + " FROM " + e
}

// of are the parameters, each in the column of its name.
func of(list []param) (a assignments) {
	for _, p := range list {
		a = append(a, [2]string{p.name, "e." + p.name})
	}
	return a
}

const now = "statement_timestamp()"

// later is the time that is so many microseconds from now.
func later(span string) string { return now + " + " + span + " * interval '1 microsecond'" }

// What becomes of a record that is claimed, or accepted. While an operation waits,
// lease_until is when it can be taken, whenever it is returned.
var (
	toRunning = assignments{{"state", "{running}"}, {"claimed_at", now}, {"lease_until", later("e.lease")}, {"due_at", later("e.lease")},
		{"outside", "CASE WHEN e.outside THEN e.owner END"}}
	toWaiting = assignments{{"state", "{accepted}"}, {"claimed_at", now}, {"lease_until", later("e.after")}, {"run_due", later("e.queued")}, {"work", "e.work"}}
)

// inserting claims or accepts keys without a record. A fence is drawn after the sort, row by
// row, immediately before the insertion. Fences could be granted out of order only if another
// claim of the key were granted, ended and deleted in between. Rows are sorted so that two
// batches cannot wait for each other in a circle.
//
// The insertion of a key waits for any transaction that has changed its record, which may be
// open for long (SettleTx). A key whose record is visible is therefore not inserted. A key
// that another transaction is inserting (AcceptTx) is not visible: see rowPatience.
func inserting(to assignments, attempt string, e string) string {
	to = slices.Concat(of(asked), assignments{{"fence", "nextval({fence}::regclass)"}, {"attempt", attempt}}, to)
	return to.insert(e) + " ON CONFLICT (id) DO NOTHING RETURNING id, fence, claimed_at"
}

// unseen: not a join, for which the planner may read the whole table.
const unseen = "(SELECT r.id FROM {records} r WHERE r.id = e.id) IS NULL"

func unseenOne(list []param) string { return one(list) + " WHERE " + unseen }

func unseenMany(list []param) string {
	return "(SELECT * FROM " + many(list) + " WHERE " + unseen + " ORDER BY id OFFSET 0) e"
}

// forgotten is whether a record counts as none.
const forgotten = "r.forget_at <= statement_timestamp()"

// regranting grants a record that there is, if it still is as it was seen: retryable, or
// forgotten. Then it is the first attempt, else the next.
func regranting(list []param, to assignments, first, next string) change {
	to = slices.Concat(of(asked[1:]), assignments{{"fence", "nextval({fence}::regclass)"},
		{"attempt", "CASE WHEN " + forgotten + " THEN " + first + " ELSE " + next + " END"},
		{"gone", "false"}, {"watched", "false"}, {"settled_at", "NULL"}, {"expires_at", "NULL"}, {"forget_at", "NULL"},
		{"notes", "CASE WHEN r.forget_at > " + now + " THEN r.notes END"}}, withoutResult, to)
	return change{params: with(list, was), set: to.set(), returning: selected(columns),
		where: "r.fence = e.was AND (r.state = {retryable} OR " + forgotten + ")"}
}

// withoutResult is what a record without a result has.
var withoutResult = assignments{{"status", "NULL"}, {"content_type", "NULL"}, {"head", "NULL"}, {"body", "NULL"}}

// withOutcome is what a record with an outcome has, however it came to that.
var withOutcome = assignments{{"state", "e.state"}, {"gone", "e.gone"}, {"status", "nullif(e.status, 0)"}, {"content_type", "nullif(e.content_type, '')"},
	{"head", "e.head"}, {"body", "e.body"}, {"settled_at", now},
	{"expires_at", later("e.keep")}, {"forget_at", later("e.forget")}, {"due_at", later("e.due")},
	{"work", "e.outbox"}, {"relay_due", "CASE WHEN e.outbox IS NOT NULL THEN " + now + " END"}}

// closing settles and releases, except a release of an accepted operation. It has two shapes: for
// many of which some may be locked, and for one whose row is waited for.
var closing = change{params: ended, set: slices.Concat(withOutcome, assignments{{"lease_until", "NULL"}, {"run_due", "NULL"},
	{"notes", "CASE WHEN e.state = {retryable} THEN r.notes END"}, {"cancel_at", "NULL"}, {"unsettled", "NULL"}}).set(),
	where:     "r.fence = e.fence AND r.state IN ({running}, {unknown}) AND (e.state <> {retryable} OR r.work IS NULL)",
	returning: "r.id, {notify}"}

// cancelling settles what waits to be run.
var cancelling = change{params: ended, set: closing.set, where: "r.fence = e.fence AND r.state = {accepted}", returning: kept}

// finishing writes the finished record of a transaction. If there is one already, it
// fails, and the transaction with it.
func finishing(e string) string {
	return slices.Concat(of(finished[:len(finished)-len(outcome)]), withOutcome).insert(e)
}

// A caller that waits for the key holds the lock of e.waiters.
var (
	sqlFinish = finishing(one(finishedNew)) + sqlFinishedAt
	// sqlFinishOld does so where there is a record that is free, if it still is as
	// it was seen, or if the sweep has removed it since. Otherwise it fails.
	sqlFinishOld = "WITH written AS (" + finishing(one(finishedOld)) + " ON CONFLICT (id) DO UPDATE SET " + excluded() +
		" WHERE r.fence = $" + strconv.Itoa(len(finishedOld)) + "::bigint AND (r.state = {retryable} OR " + forgotten + ")" + sqlFinishedAt +
		") SELECT max(settled_at), 1 / count(*) > 0, " + audible + " FROM written"
)

var sqlFinishedAt = fmt.Sprintf(" RETURNING r.settled_at, (CASE WHEN NOT pg_try_advisory_xact_lock($%d::bigint) THEN pg_notify({channel}, encode(r.id, 'hex')) END) IS NULL, "+
	audible, len(finished)+1)

// excluded are the assignments of a record that is replaced by a finished one.
func excluded() string {
	var to assignments
	for _, p := range slices.Concat(of(finished[1:len(finished)-len(outcome)]), withOutcome) {
		to = append(to, [2]string{p[0], "excluded." + p[0]})
	}
	return append(to, assignments{{"lease_until", "NULL"}, {"watched", "false"}, {"notes", "NULL"}}...).set()
}

var (
	// Read once for all rows.
	sqlRead = "SELECT " + strings.Replace(selected(columns), replicated, "(SELECT "+replicated+")", 1) + " FROM {records} r WHERE r.id = ANY ($1::bytea[])"
	sqlLoad = "SELECT " + selected(columns) + " FROM {records} r WHERE r.id = $1::bytea"
	sqlLook = "SELECT " + kept + " FROM {records} r WHERE r.id = $1::bytea"
)

// extending extends the leases of rows e by $3.
var extending = change{set: "lease_until = " + later("$3::bigint") + ", due_at = " + later("$3::bigint") +
	", run_due = CASE WHEN r.run_due IS NOT NULL THEN greatest(r.run_due, " + later("$3::bigint") + ") END",
	where: "r.fence = e.fence AND r.state = {running}", returning: "r.id, r.fence"}

// dead sets the state of an expired run: accepted if it may be repeated, because it is due
// then; retryable if it can have had no effect, with the default retention of a release;
// otherwise unknown.
const dead = `state = CASE WHEN r.run_due IS NOT NULL THEN {accepted} WHEN r.outside = r.owner THEN {retryable} ELSE {unknown} END,
	settled_at = statement_timestamp(),
	forget_at = CASE WHEN r.run_due IS NULL AND r.outside = r.owner THEN statement_timestamp() + interval '24 hours' END,
	due_at = CASE WHEN r.run_due IS NULL AND r.outside = r.owner THEN statement_timestamp() + interval '24 hours' END,
	lease_until = CASE WHEN r.run_due IS NOT NULL THEN statement_timestamp() END`

var sqlMarkUnknown = `
UPDATE {records} r SET ` + dead + `
WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = {running} AND r.lease_until <= statement_timestamp()
RETURNING {notify}, ` + selected(columns)

// sqlWatch asks for a notification. A row that is locked is about to
// change, and is skipped.
const sqlWatch = `
WITH l AS MATERIALIZED (
	SELECT r.ctid AS at FROM {records} r WHERE r.id = $1::bytea AND r.fence = $2::bigint AND r.state = {running} AND NOT r.watched
	FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {records} r SET watched = true FROM l WHERE r.ctid = l.at`

// bare removes a result.
const bare = "status = NULL, content_type = NULL, head = NULL, body = NULL"

// sqlSweep reads only due rows, through an index, and skips rows that are locked, and rows that
// it would not change: they would stay the first.
const sqlSweep = `
WITH d AS MATERIALIZED (
	SELECT r.ctid AS at, r.state,
		r.state = {running} AND r.lease_until <= statement_timestamp() AS dead,
		coalesce(r.forget_at <= statement_timestamp(), false) AS forgotten
	FROM {records} r WHERE r.due_at <= statement_timestamp() AND ` + readable + `
		AND (r.state IN ({completed}, {failed}) OR r.state = {running} AND r.lease_until <= statement_timestamp() OR r.state <> {running} AND r.forget_at <= statement_timestamp())
	ORDER BY r.due_at LIMIT $1::bigint FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
	UPDATE {records} r SET ` + dead + `
	FROM d WHERE r.ctid = d.at AND d.dead RETURNING r.state, {notify}
), expired AS (
	UPDATE {records} r SET gone = true, ` + bare + `, due_at = r.forget_at
	FROM d WHERE r.ctid = d.at AND d.state IN ({completed}, {failed}) AND NOT d.forgotten RETURNING 1
), purged AS (
	DELETE FROM {records} r USING d WHERE r.ctid = d.at AND d.state <> {running} AND d.forgotten RETURNING 1
)
SELECT (SELECT count(*) FROM d), (SELECT count(*) FROM marked WHERE state = {unknown}), (SELECT count(*) FROM expired), (SELECT count(*) FROM purged)`

// patience bounds how long what follows in the same transaction waits for a lock.
var patience = &statement{sql: fmt.Sprintf("SELECT set_config('lock_timeout', '%d', true), set_config('statement_timeout', '%d', true), "+audible,
	rowPatience.Milliseconds(), statementTimeout.Milliseconds()), reads: true}

// reading marks a statement that writes nothing.
func reading(st *statement) *statement {
	st.reads = true
	return st
}

// filling puts names and states into templates.
func filling(n names) func(string) string {
	pairs := []string{"{records}", n.records, "{history}", n.history, "{fence}", literal(n.fence), "{channel}", literal(n.channel),
		"{notify}", "(CASE WHEN r.watched THEN pg_notify(" + literal(n.channel) + ", encode(r.id, 'hex')) END) IS NULL",
		"{most}", strconv.Itoa(dueBytes), "{names}", strconv.Itoa(store.MaxDueNames)}
	for state := store.Running; state <= store.Accepted; state++ {
		pairs = append(pairs, "{"+state.String()+"}", strconv.Itoa(int(state)))
	}
	return strings.NewReplacer(pairs...).Replace
}

func newStatements(n names) statements {
	fill := filling(n)
	make := func(sql string) *statement { return &statement{sql: fill(sql)} }
	takes := change{params: taking, set: toTaken, where: "r.owner <> e.owner AND " + takeable, returning: kept}
	leaves := change{params: relayed, set: toRelayed, where: "r.fence = e.fence AND r.state IN ({completed}, {failed}) AND r.work IS NOT NULL", returning: "r.id"}
	regrant := regranting(claimed, slices.Concat(toRunning), "1", "r.attempt + 1")
	reaccept := regranting(accepted, slices.Concat(toWaiting, assignments{{"due_at", "NULL"}}), "0", "r.attempt")
	return statements{leaseStatements: leaseStatements{
		insert:      make(inserting(toRunning, "1", unseenMany(claimed))),
		insertOne:   make(inserting(toRunning, "1", unseenOne(claimed))),
		regrant:     make(regrant.waiting()),
		end:         make(closing.free(many(ended))),
		endOne:      make(closing.waiting()),
		read:        reading(make(sqlRead)),
		extend:      make(extending.free("unnest($1::bytea[], $2::bigint[]) AS e (id, fence)")),
		markUnknown: make(sqlMarkUnknown),
		watch:       make(sqlWatch),
		sweep:       make(sqlSweep),
		confirm:     make(sqlConfirm),
	}, operatorStatements: operatorStatements{
		addHistory: make(sqlAddHistory),
		history:    reading(make(sqlHistory)),
		browse:     reading(make(sqlBrowse)),
		browseOpen: reading(make(sqlBrowseOpen)),
		expire:     make(sqlExpire),
		replace:    make(sqlReplace),
	}, workStatements: workStatements{acceptStatements: acceptStatements{
		accept:    make(inserting(toWaiting, "0", unseenMany(accepted))),
		acceptOne: make(inserting(toWaiting, "0", unseenOne(accepted))),
		reaccept:  make(reaccept.waiting()),
		take:      make(takes.waiting()),
		takeFree:  make(takes.free(many(taking))),
		look:      reading(make(sqlLook)),
		giveBack:  make(sqlGiveBack),
	},
		cancel:      make(cancelling.waiting()),
		cancelRun:   make(sqlCancelRun),
		save:        make(saveSQL(true)),
		amend:       make(saveSQL(false)),
		dueRun:      make(dueSQL(sqlDueRun, "run_due")),
		dueAny:      make(dueSQL(sqlDueAny, "run_due")),
		dueRelay:    make(dueSQL(sqlDueRelay, "relay_due")),
		relayed:     make(leaves.waiting()),
		relayedFree: make(leaves.free(many(relayed))),
	}, txStatements: txStatements{
		finish:    make(sqlFinish),
		finishOld: make(sqlFinishOld),
		audible:   make("SELECT " + audible),

		enter:      make(sqlEnter),
		load:       make(sqlLoad),
		concurrent: make(sqlConcurrent),

		enterGroup:  make(sqlEnterGroup),
		finishGroup: make(finishing(many(finished)) + " ORDER BY e.id RETURNING r.settled_at"),
		tellGroup:   make(sqlTellGroup),
	}}
}
