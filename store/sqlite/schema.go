package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/store/internal/rules"
)

// schemaVersion is the version of the tables that this code reads and writes.
const schemaVersion = len(steps)

// steps are the migrations. Opening a file executes the missing ones.
var steps = [...]string{schemaRecords, schemaWork, schemaLabel}

// The version is in a separate table, because PRAGMA user_version belongs to the service, whose
// tables may be in the same file.
//
// The key of a row is its fence. Settling therefore finds a row by number, results are appended
// although digests are spread evenly, and no counter is needed: the next fence is that of the
// last row plus one. If the last row is deleted, a trigger stores its fence in stet_meta, so
// that no deletion can repeat a fence.
//
// status, content_type, head and body are the result of a settled record, see store.Result;
// NULL is 0, "" and nil.
//
// due is when the sweep must read the record: the lease or the result expires, or the record is
// deleted. NULL: never.
//
// The index of unknown records is for operators, and costs other records nothing.
const schemaRecords = `
CREATE TABLE stet_meta (
	one    INTEGER PRIMARY KEY CHECK (one = 1),
	schema INTEGER NOT NULL,
	fence  INTEGER NOT NULL
) STRICT;
CREATE TABLE stet_records (
	fence       INTEGER PRIMARY KEY,
	id          BLOB    NOT NULL UNIQUE,
	scope       BLOB    NOT NULL,
	fingerprint BLOB    NOT NULL,
	owner       BLOB    NOT NULL,
	state       INTEGER NOT NULL,
	attempt     INTEGER NOT NULL,
	gone        INTEGER NOT NULL DEFAULT 0,
	claimed     INTEGER NOT NULL,
	lease       INTEGER,
	settled     INTEGER,
	expires     INTEGER,
	forget      INTEGER,
	due         INTEGER,
	status      INTEGER,
	content_type TEXT,
	head        BLOB,
	body        BLOB
) STRICT;
CREATE INDEX stet_records_due ON stet_records (due) WHERE due IS NOT NULL;
CREATE INDEX stet_records_unknown ON stet_records (id) WHERE state = 5;
CREATE TRIGGER stet_records_fence BEFORE DELETE ON stet_records
WHEN old.fence > (SELECT fence FROM stet_meta WHERE one = 1) BEGIN
	UPDATE stet_meta SET fence = old.fence WHERE one = 1;
END;
INSERT INTO stet_meta (one, schema, fence) VALUES (1, 1, 0);
`

// work is the job of an accepted operation, until it is settled. While it waits (state 6), run_due is
// when Due returns it next, and lease is when it can be taken. The work of a settled record is its
// messages, and relay_due is when DueMessages returns them next. Few records have any: the indexes
// cost the others nothing.
const schemaWork = `
ALTER TABLE stet_records ADD COLUMN run_due INTEGER;
ALTER TABLE stet_records ADD COLUMN relay_due INTEGER;
ALTER TABLE stet_records ADD COLUMN cancelling INTEGER;
ALTER TABLE stet_records ADD COLUMN notes BLOB;
ALTER TABLE stet_records ADD COLUMN work BLOB;
CREATE INDEX stet_records_run ON stet_records (run_due) WHERE run_due IS NOT NULL;
CREATE INDEX stet_records_relay ON stet_records (relay_due) WHERE relay_due IS NOT NULL;
UPDATE stet_meta SET schema = 2 WHERE one = 1;
`

// class, name and ref are for people, verifiers and queues. Jobs are found by name: the jobs of other
// processes cost nothing. The view is for people: digests in hexadecimal, states by name, times as text.
const schemaLabel = `
ALTER TABLE stet_records ADD COLUMN class TEXT NOT NULL DEFAULT '';
ALTER TABLE stet_records ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE stet_records ADD COLUMN ref TEXT NOT NULL DEFAULT '';
DROP INDEX stet_records_run;
CREATE INDEX stet_records_run ON stet_records (name, run_due) WHERE run_due IS NOT NULL;
CREATE VIEW stet_operations AS
SELECT lower(hex(id)) AS id, lower(hex(scope)) AS scope, class, name, ref,
	CASE state WHEN 1 THEN 'running' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed' WHEN 4 THEN 'retryable'
		WHEN 5 THEN 'unknown' WHEN 6 THEN 'accepted' END AS state,
	attempt, fence, gone, status, content_type, CAST(body AS TEXT) AS body, length(body) AS body_bytes, substr(head, 1, 1) = x'02' AS sealed, cancelling IS NOT NULL AS cancelling,
	strftime('%Y-%m-%d %H:%M:%fZ', claimed / 1e6, 'unixepoch') AS claimed_at, strftime('%Y-%m-%d %H:%M:%fZ', lease / 1e6, 'unixepoch') AS lease_until,
	strftime('%Y-%m-%d %H:%M:%fZ', run_due / 1e6, 'unixepoch') AS run_due, strftime('%Y-%m-%d %H:%M:%fZ', settled / 1e6, 'unixepoch') AS settled_at,
	strftime('%Y-%m-%d %H:%M:%fZ', relay_due / 1e6, 'unixepoch') AS relay_due, strftime('%Y-%m-%d %H:%M:%fZ', expires / 1e6, 'unixepoch') AS expires_at,
	strftime('%Y-%m-%d %H:%M:%fZ', forget / 1e6, 'unixepoch') AS forget_at,
	lower(hex(fingerprint)) AS fingerprint, lower(hex(owner)) AS owner
FROM stet_records;
UPDATE stet_meta SET schema = 3 WHERE one = 1;
`

// The troubles of records; most have none. The sweep deletes them with the record. A record that
// is claimed again is another row, with the same history. The table is not part of the version, which
// the statements of services compare: programs that do not know it work beside it.
const schemaHistory = `
CREATE TABLE IF NOT EXISTS stet_history (
	seq     INTEGER PRIMARY KEY,
	id      BLOB    NOT NULL,
	fence   INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	at      INTEGER NOT NULL,
	data    BLOB    NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS stet_history_id ON stet_history (id, seq);
`

// Limits of memory and files. A short log is overwritten, which is faster than a growing one. The page
// cache is small because a commit that has split pages goes through all of it.
const (
	walPages = 1000     // of the write-ahead log, before it is copied back
	walKeep  = 64 << 20 // bytes of the log's file that stay when it is restarted
	cache    = 8 << 10  // KiB of pages, of each connection
)

// source returns the data source name of a path. Percent signs, question marks
// and other characters are escaped, because the driver takes it for a URI.
func source(path string, busy time.Duration) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	slash := filepath.ToSlash(abs)
	if !strings.HasPrefix(slash, "/") { // a drive letter
		slash = "/" + slash
	}
	parts := strings.Split(slash, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	q := url.Values{"_txlock": {"immediate"}, "_error_rc": {"1"}, "_pragma": {
		"busy_timeout(" + strconv.FormatInt(busy.Milliseconds(), 10) + ")",
		"synchronous(FULL)",
		"fullfsync(ON)",
		"foreign_keys(ON)",
		"trusted_schema(OFF)",
		fmt.Sprintf("cache_size(-%d)", cache),
		fmt.Sprintf("wal_autocheckpoint(%d)", walPages),
		fmt.Sprintf("journal_size_limit(%d)", walKeep),
	}}
	return "file://" + strings.Join(parts, "/") + "?" + q.Encode(), nil
}

// prepare creates or migrates the tables, and refuses unknown versions. Several processes can call it
// at the same time.
func (s *Store) prepare(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.explain("open", err, s.path)
	}
	defer conn.Close()
	if err := s.useWAL(ctx, conn); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&s.file); err != nil {
		return s.explain("open", err, s.path)
	}
	w, err := readWindow(ctx, conn)
	complete := false
	if err == nil {
		err = conn.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'stet_history_id')").Scan(&complete)
	}
	if err == nil && (w.Version < schemaVersion || w.Version == schemaVersion && !complete) {
		w, err = migrate(ctx, conn)
	}
	if err == nil {
		err = w.Refuse(s.path, schemaVersion)
	}
	if err != nil {
		return s.explain("open", err, s.path)
	}
	return nil
}

// useWAL puts the file into write-ahead mode, where it stays. SQLite does not
// wait for other processes here, whatever busy_timeout says.
func (s *Store) useWAL(ctx context.Context, conn *sql.Conn) error {
	end := time.Now().Add(s.o.BusyTimeout)
	for {
		var mode string
		err := conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode)
		switch {
		case err == nil && mode == "wal":
			return nil
		case err == nil:
			return fmt.Errorf("sqlite: %s: the journal mode stays %q; write-ahead logging needs a local file system", s.path, mode)
		case !isBusy(err) || time.Now().After(end):
			return s.explain("open", err, s.path)
		}
		pause := time.NewTimer(time.Millisecond + rand.N(5*time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("sqlite: open: %w", context.Cause(ctx))
		}
	}
}

// queryer is a *sql.Conn or a *sql.Tx.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// readWindow returns the version of the tables, 0 if there are none.
func readWindow(ctx context.Context, q queryer) (w rules.Window, err error) {
	var tables int
	err = q.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = 'stet_meta'").Scan(&tables)
	if err != nil || tables == 0 {
		return w, err
	}
	if w, err = rules.ReadWindow(ctx, q, "SELECT * FROM stet_meta WHERE one = 1", "schema"); err == nil && w.Version < 1 {
		err = fmt.Errorf("%w: the table stet_meta is empty or was changed", errDamaged)
	}
	return w, err
}

// migrate executes the missing steps, unless another process has just done so. It returns the version
// of the tables.
func migrate(ctx context.Context, conn *sql.Conn) (w rules.Window, err error) {
	tx, err := conn.BeginTx(ctx, nil) // immediate: only one process gets past this at a time
	if err != nil {
		return w, err
	}
	defer func() { _ = tx.Rollback() }()
	if w, err = readWindow(ctx, tx); err != nil || w.Version > schemaVersion {
		return w, err
	}
	for _, step := range append(steps[w.Version:], schemaHistory) {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return w, err
		}
	}
	return rules.Window{Version: schemaVersion, Min: schemaVersion}, tx.Commit()
}
