package mysql

import (
	"slices"
	"strings"
)

// Every row that is read has these columns, and four more, so that one function can scan all.
const (
	columns = `id, fence, scope, fingerprint, owner, state, attempt, gone, cancelling, claimed, lease, settled, expires, forget, due, ` +
		`queue, queue_due, conn, class, name, ref, `

	columnCount = 27

	whole  = columns + `status, content_type, head, body, notes, work`
	bare   = columns + `status, content_type, head, body, NULL, IF(work IS NULL, NULL, '')`
	listed = columns + `NULL, NULL, NULL, NULL, NULL, IF(work IS NULL, NULL, '')`
	toDo   = columns + `status, content_type, head, body, NULL, work`
)

// statements are the store's statements. {…} are the names of the tables, with that of their database:
// a service's transaction may be of another one.
type statements struct {
	names
	read, look, peek string
	batch
	lockOne            string // in a transaction of the service
	update             string // of one row, if its fence is that; conn changes if it is settled
	reserve            string
	extendLock, extend string
	sweep              string
	flush              string
}

// names are those of tables and a view.
type names struct{ records, meta, history, view string }

// batch is what the statements of a batch begin with, or end with.
type batch struct{ begin, lock, header, insert, replace string }

func statementsOf(database string) (t statements) {
	quoted := "`" + strings.ReplaceAll(database, "`", "``") + "`."
	t.records, t.meta, t.history, t.view = quoted+"stet_records", quoted+"stet_meta", quoted+"stet_history", quoted+"stet_operations"
	all := strings.Split(strings.ReplaceAll(whole, " ", ""), ",")
	t.read = t.fill(`SELECT ` + bare + `, ` + headerColumns + ` FROM {records} WHERE id = ?`)
	t.look = t.fill(`SELECT ` + whole + `, ` + headerColumns + ` FROM {records} WHERE id = ?`)
	// The committed row, and the row as an open transaction has it.
	t.peek = t.fill(`SELECT ` + bare + ` FROM {records} WHERE id = ?; SELECT ` + headerColumns + `; SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; SELECT ` + bare + ` FROM {records} WHERE id = ?`)
	// READ UNCOMMITTED locks what READ COMMITTED locks: rows, no gaps. The plain SELECT also finds rows
	// that other transactions have inserted and not committed.
	t.begin = `SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; START TRANSACTION; `
	// By FORCE INDEX no statement scans a small table, or another index: it would wait for rows, or lock
	// gaps, that are not its own.
	t.lock = t.fill(`SELECT ` + whole + ` FROM {records} FORCE INDEX (PRIMARY) WHERE id IN `)
	t.header = `; SELECT ` + headerColumns
	t.lockOne = t.fill(`SELECT ` + whole + `, ` + headerColumns + ` FROM {records} WHERE id = ? FOR UPDATE`)
	t.insert = t.fill(`INSERT INTO {records} (` + whole + `) VALUES `)
	t.replace = t.fill(`REPLACE INTO {records} (` + whole + `) VALUES `)
	all = slices.Delete(all, connColumn, connColumn+1)
	t.update = t.fill(`UPDATE {records} FORCE INDEX (PRIMARY) SET ` + strings.Join(all[2:], ` = ?, `) + ` = ?, conn = IF(?, CONNECTION_ID(), conn) WHERE id = ? AND fence = ?`)
	// The row of state 0 is none. The statement locks it, also if it exists: exclusively, so that two
	// transactions that wait for it do not deadlock.
	t.reserve = t.fill(`INSERT INTO {records} (id, scope, fingerprint, owner, state, attempt, gone, cancelling, claimed, class, name, ref)
		VALUES (?, '', '', '', 0, 0, 0, 0, 0, '', '', '') ON DUPLICATE KEY UPDATE id = id`)
	t.extendLock = t.fill(`SELECT ` + listed + ` FROM {records} FORCE INDEX (PRIMARY) WHERE id IN `)
	t.extend = t.fill(`UPDATE {records} FORCE INDEX (PRIMARY) SET lease = ?, due = ?, queue_due = IF(queue IS NULL, NULL, GREATEST(queue_due, ?)) WHERE id IN `)
	t.sweep = t.begin + t.fill(`SELECT `+listed+` FROM {records} WHERE due <= `+nowColumn+` + ? ORDER BY due LIMIT ? FOR UPDATE SKIP LOCKED; SELECT `+headerColumns)
	t.flush = t.fill(`UPDATE {meta} SET flushes = flushes + 1 WHERE one = 1`)
	return t
}

// nowColumn is the server's time in microseconds since 1970, as in header.
const nowColumn = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

func (t *statements) fill(text string) string {
	return strings.NewReplacer("{records}", t.records, "{meta}", t.meta, "{history}", t.history, "{view}", t.view).Replace(text)
}

// list is "(?, ?, ?)" with n marks.
func list(n int) string { return "(?" + strings.Repeat(", ?", n-1) + ")" }
