package sqlite

// query is a statement of the store.
type query uint8

const (
	qFence query = iota
	qInsert
	qSelect
	qMarkUnknown
	qExtend
	qSettle
	qRelease
	qSweep
	qExpire
	qDelete
	qBrowse
	qBrowseUnknown
	qTake
	qReturn
	qCancelRun
	qSave
	qNames
	qDueJobs
	qDueMessages
	qJobLater
	qMessagesLater
	qSweepLater
	qBury
	qDeleteNameless
	qRelayed
	qTrust
	qHistoryStart
	qHistoryFull
	qAddHistory
	qHistory
	qForgetHistory
	queries // how many there are
)

const (
	// bare removes a result.
	bare = `status = NULL, content_type = NULL, head = NULL, body = NULL`
	// Every row that is read has the same columns, so that one function can scan all.
	key    = `scope, fingerprint, owner, state, fence, attempt, gone, claimed, lease, settled, expires, forget, `
	label  = `, class, name, ref, state = 1 AND run_due IS NOT NULL, work IS NOT NULL`
	whole  = key + `status, content_type, head, body` + label + `, cancelling, notes, work, id`
	listed = key + `NULL, NULL, NULL, NULL` + label + `, NULL, NULL, NULL, id`
	toDo   = key + `status, content_type, head, body` + label + `, NULL, NULL, work, id, `
)

var sqlText = [queries]string{
	qFence: `SELECT max(fence, coalesce((SELECT max(fence) FROM stet_records), 0)) FROM stet_meta WHERE one = 1`,

	qInsert: `INSERT INTO stet_records (fence, id, scope, fingerprint, owner, state, attempt, claimed, class, name, ref, lease, due, run_due, work, notes)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
	qSelect: `SELECT ` + whole + ` FROM stet_records WHERE id = ?`,

	// The writes below follow a read in the same write transaction, which excludes all others.
	qMarkUnknown: `UPDATE stet_records SET state = CASE WHEN run_due IS NULL THEN 5 ELSE 6 END, settled = ?,
		lease = CASE WHEN run_due IS NOT NULL THEN ? END, due = NULL WHERE fence = ?`,
	qExtend: `UPDATE stet_records SET lease = ?, due = ?, run_due = max(run_due, ?) -- NULL if it is NULL
		WHERE fence = ? AND id = ? AND state = 1`,
	qSettle: `UPDATE stet_records SET state = ?, gone = ?, status = ?, content_type = ?, head = ?, body = ?, settled = ?, expires = ?, forget = ?, due = ?, lease = NULL,
		work = ?, relay_due = ?, run_due = NULL, notes = NULL, cancelling = NULL WHERE fence = ? AND state IN (1, 5, 6)`,
	qRelease: `UPDATE stet_records SET state = 4, settled = ?, forget = ?, due = ?, lease = NULL WHERE fence = ?`,

	qSweep: `SELECT ` + listed + ` FROM stet_records WHERE due <= ? ORDER BY due LIMIT ?`,
	qExpire: `UPDATE stet_records SET gone = 1, ` + bare + `, due = forget,
		expires = CASE WHEN gone THEN expires ELSE min(expires, ?) END WHERE fence = ?`,
	qDelete: `DELETE FROM stet_records WHERE fence = ?`,

	qBrowse:        `SELECT ` + listed + ` FROM stet_records WHERE id > ? AND id <= ? ORDER BY id LIMIT ?`,
	qBrowseUnknown: `SELECT ` + listed + ` FROM stet_records WHERE id > ? AND id <= ? AND state = 5 ORDER BY id LIMIT ?`,

	qTake: `UPDATE stet_records SET owner = ?, state = ?, fence = ?, attempt = ?, claimed = ?, lease = ?, due = ?,
		settled = NULL, run_due = ? WHERE fence = ?`,
	qReturn:    `UPDATE stet_records SET state = 6, settled = ?, run_due = ?, lease = ?, due = NULL WHERE fence = ?`,
	qCancelRun: `UPDATE stet_records SET cancelling = 1 WHERE fence = ?`,
	qSave:      `UPDATE stet_records SET notes = ?, run_due = CASE WHEN ? AND work IS NOT NULL THEN coalesce(run_due, lease) END WHERE fence = ?`,

	qNames: `WITH RECURSIVE names(name) AS (SELECT min(name) FROM stet_records WHERE run_due IS NOT NULL AND name >= ?1
		UNION ALL SELECT (SELECT min(name) FROM stet_records WHERE run_due IS NOT NULL AND name > names.name) FROM names WHERE name IS NOT NULL LIMIT ?2)
		SELECT name FROM names WHERE name IS NOT NULL`,
	qDueJobs:       `SELECT ` + toDo + `run_due FROM stet_records WHERE name = ? AND run_due <= ? ORDER BY run_due LIMIT ? OFFSET ?`,
	qDueMessages:   `SELECT ` + toDo + `relay_due FROM stet_records WHERE relay_due <= ? ORDER BY relay_due LIMIT ? OFFSET ?`,
	qJobLater:      `UPDATE stet_records SET run_due = ? WHERE fence = ? AND run_due = ?`,
	qMessagesLater: `UPDATE stet_records SET relay_due = ? WHERE fence = ? AND relay_due = ?`,
	qSweepLater:    `UPDATE stet_records SET due = ? WHERE fence = ?`,

	// Attempt 0 would say that it was never run.
	qBury: `UPDATE stet_records SET fence = CASE WHEN fence > 0 THEN fence ELSE ? END, scope = ?, fingerprint = ?, owner = ?, state = 3,
		attempt = max(attempt, 1), gone = 1, ` + bare + `, settled = ?, expires = ?, forget = ?, due = ?, lease = NULL,
		run_due = NULL, relay_due = NULL, cancelling = NULL, notes = NULL, work = NULL WHERE fence = ?`,
	qDeleteNameless: `DELETE FROM stet_records WHERE fence = ? AND length(id) <> 32`,

	qRelayed: `UPDATE stet_records SET work = NULL, relay_due = NULL, forget = ?, due = CASE WHEN gone THEN ? ELSE min(expires, ?) END WHERE fence = ?`,

	qHistoryStart: `DELETE FROM stet_history WHERE id = ? AND fence < ?`,
	qHistoryFull: `DELETE FROM stet_history WHERE seq = (SELECT seq FROM stet_history WHERE id = ?1 ORDER BY seq LIMIT 1 OFFSET ?2)
		AND (SELECT count(*) FROM stet_history WHERE id = ?1) >= ?3`,
	qAddHistory:    `INSERT INTO stet_history (id, fence, attempt, at, data) SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM stet_records WHERE id = ?1)`,
	qHistory:       `SELECT fence, attempt, at, data FROM stet_history WHERE id = ? ORDER BY seq DESC LIMIT ?`,
	qForgetHistory: `DELETE FROM stet_history WHERE id = ?`,

	qTrust: `SELECT s.synchronous, d.file FROM pragma_synchronous AS s, pragma_database_list AS d WHERE d.name = 'main'`,
}
