// Package journal stores a client's intents in an SQLite file, for
// stetclient.Options.Journal. It needs no server and no C compiler.
//
// Acknowledged intents are on the disk (write-ahead log, synchronous=FULL). One process at a
// time can open the file. It has request bodies, responses and keys, so only its owner can
// read it.
package journal

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
)

// Defaults of Options.
const (
	// DefaultMaxPending is Options.MaxPending when that is 0.
	DefaultMaxPending = 100_000
	// Keep is how long an intent is stored after its answer. Until then, calls with its
	// name return that answer.
	Keep = 30 * 24 * time.Hour

	version    = 2   // of the table, in user_version
	busy       = 2   // seconds that Open waits for another process to close the file
	purgeLimit = 100 // old intents removed with each that is settled
	maxPage    = 1000
)

// Options configure a Journal. The zero value is usable.
type Options struct {
	// MaxPending bounds the intents without an answer; more are refused with
	// stetclient.ErrJournalFull. Default DefaultMaxPending.
	MaxPending int
}

// Journal is a stetclient.Journal in an SQLite file. It is safe for concurrent
// use.
type Journal struct {
	db *sql.DB
	o  Options
}

var _ stetclient.Journal = (*Journal)(nil)

const schema = `
CREATE TABLE stet_intents (
	name      TEXT    PRIMARY KEY,
	key       TEXT    NOT NULL,
	method    TEXT    NOT NULL,
	url       TEXT    NOT NULL,
	host      TEXT    NOT NULL,
	header    BLOB    NOT NULL,
	body      BLOB    NOT NULL,
	created   INTEGER NOT NULL,
	execution INTEGER NOT NULL,
	settled   INTEGER,
	status    INTEGER,
	gone      INTEGER,
	answer_header BLOB,
	answer    BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX stet_intents_pending ON stet_intents (name) WHERE settled IS NULL;
CREATE INDEX stet_intents_settled ON stet_intents (settled) WHERE settled IS NOT NULL;
PRAGMA user_version = 2;
`

const columns = `name, key, method, url, host, header, body, created, execution, settled, status, gone, answer_header, answer`

// Open opens the journal in the file at path. It creates the file if there is none, in a
// folder that must exist, and makes it readable for its owner only. Close the journal after
// the Transport's last use. Open refuses a file that is open already, has tables of another
// version, or has more than one name (hard links).
func Open(ctx context.Context, path string, o Options) (*Journal, error) {
	if path == "" || path == ":memory:" || strings.HasPrefix(path, "file:") || strings.ContainsRune(path, 0) {
		return nil, fmt.Errorf("journal: the path is %q; name a file on the local disk", path)
	}
	if o.MaxPending < 0 {
		return nil, fmt.Errorf("journal: Options.MaxPending is negative: %d", o.MaxPending)
	}
	o.MaxPending = cmp.Or(o.MaxPending, DefaultMaxPending)
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if abs, err = createFile(abs); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j, err := openFile(ctx, abs, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return j, nil
}

// openFile opens the database.
func openFile(ctx context.Context, abs string, o Options) (*Journal, error) {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(abs), RawQuery: url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busy*1000), "locking_mode(EXCLUSIVE)", "journal_mode(WAL)", "synchronous(FULL)", "fullfsync(ON)", "trusted_schema(OFF)",
	}}.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // which holds the file's lock
	j := &Journal{db: db, o: o}
	if err := j.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w (a journal can be open once at a time)", err), db.Close())
	}
	if err := tighten(abs, abs+"-wal", abs+"-shm"); err != nil {
		return nil, errors.Join(fmt.Errorf("journal: only its owner may read it: %w", err), db.Close())
	}
	return j, nil
}

// tighten makes the files of a journal readable for their owner only.
func tighten(paths ...string) error {
	for _, path := range paths {
		st, err := os.Stat(path)
		if err == nil && st.Mode().Perm()&0o077 != 0 {
			err = os.Chmod(path, 0o600)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// prepare makes the table of a new file, and refuses tables of another version.
func (j *Journal) prepare(ctx context.Context) error {
	return j.tx(ctx, func(tx *sql.Tx) error {
		var v, tables int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
			return err
		}
		switch {
		case v == 0 && tables == 0:
			_, err := tx.ExecContext(ctx, schema)
			return err
		case v != version:
			return fmt.Errorf("its tables have the version %d, and this program knows version %d: use another file", v, version)
		}
		return nil
	})
}

// tx runs fn in a transaction, and commits it unless fn returns an error.
func (j *Journal) tx(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := j.db.BeginTx(ctx, nil)
	if err == nil {
		defer func() { _ = tx.Rollback() }()
		err = fn(tx)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// Close waits for the calls in progress and closes the file.
func (j *Journal) Close() error {
	return j.db.Close()
}

// Add implements stetclient.Journal.
func (j *Journal) Add(ctx context.Context, in stetclient.Intent) (got stetclient.Intent, added bool, err error) {
	header, err := encode(in.Header)
	if err != nil {
		return in, false, fmt.Errorf("journal: %w", err)
	}
	err = j.tx(ctx, func(tx *sql.Tx) error {
		got, err = scan(tx.QueryRowContext(ctx, "SELECT "+columns+" FROM stet_intents WHERE name = ?", in.Name))
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var pending int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM stet_intents WHERE settled IS NULL").Scan(&pending); err != nil {
			return err
		}
		if pending >= j.o.MaxPending {
			return stetclient.ErrJournalFull
		}
		got, added = in, true
		_, err := tx.ExecContext(ctx, "INSERT INTO stet_intents (name, key, method, url, host, header, body, created, execution) VALUES (?,?,?,?,?,?,?,?,?)",
			in.Name, in.Key, in.Method, in.URL, in.Host, header, notNil(in.Body), in.Created.UnixMicro(), in.Execution)
		return err
	})
	if err != nil {
		return in, false, err
	}
	return got, added, nil
}

// Mark implements stetclient.Journal.
func (j *Journal) Mark(ctx context.Context, name, key string, x stet.Execution) (was stet.Execution, err error) {
	err = j.tx(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT execution FROM stet_intents WHERE name = ? AND key = ? AND settled IS NULL", name, key).Scan(&was)
		if errors.Is(err, sql.ErrNoRows) {
			return stetclient.ErrNoIntent
		}
		if err != nil || was == x {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE stet_intents SET execution = ? WHERE name = ?", x, name)
		return err
	})
	return was, err
}

// found returns ErrNoIntent if nothing was changed.
func found(res sql.Result) error {
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = stetclient.ErrNoIntent
	}
	return err
}

// Settle implements stetclient.Journal.
func (j *Journal) Settle(ctx context.Context, name, key string, a stetclient.Answer) error {
	header, err := encode(a.Header)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return j.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE stet_intents SET settled = ?, status = ?, gone = ?, answer_header = ?, answer = ?, execution = ?
			WHERE name = ? AND key = ? AND settled IS NULL`,
			a.At.UnixMicro(), a.Status, a.Gone, header, notNil(a.Body), a.Execution, name, key)
		if err != nil {
			return err
		}
		if err := found(res); err != nil {
			var one int // the first answer stays
			err := tx.QueryRowContext(ctx, "SELECT 1 FROM stet_intents WHERE name = ? AND key = ?", name, key).Scan(&one)
			if errors.Is(err, sql.ErrNoRows) {
				return stetclient.ErrNoIntent
			}
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM stet_intents WHERE name IN
			(SELECT name FROM stet_intents WHERE settled < ? ORDER BY settled LIMIT ?)`, a.At.Add(-Keep).UnixMicro(), purgeLimit)
		return err
	})
}

// Forget implements stetclient.Journal.
func (j *Journal) Forget(ctx context.Context, name string) error {
	return j.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM stet_intents WHERE name = ? AND (settled IS NOT NULL OR execution = ?)", name, stet.NotExecuted)
		if err != nil || found(res) == nil {
			return err
		}
		var one int
		err = tx.QueryRowContext(ctx, "SELECT 1 FROM stet_intents WHERE name = ?", name).Scan(&one)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		return stetclient.ErrUnsettled
	})
}

// Pending implements stetclient.Journal. A limit above 1000 means 1000.
func (j *Journal) Pending(ctx context.Context, after string, limit int) ([]stetclient.Intent, error) {
	return j.list(ctx, "SELECT "+columns+" FROM stet_intents WHERE settled IS NULL AND name > ? ORDER BY name LIMIT ?", after, min(limit, maxPage))
}

// List returns the intents whose names sort after after, those with an answer
// included, in the order of their names, at most limit (and 1000) of them.
func (j *Journal) List(ctx context.Context, after string, limit int) ([]stetclient.Intent, error) {
	return j.list(ctx, "SELECT "+columns+" FROM stet_intents WHERE name > ? ORDER BY name LIMIT ?", after, min(limit, maxPage))
}

func (j *Journal) list(ctx context.Context, query, after string, limit int) (all []stetclient.Intent, err error) {
	rows, err := j.db.QueryContext(ctx, query, after, limit)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		in, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		all = append(all, in)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return all, nil
}

// scan reads an intent from a row.
func scan(row interface{ Scan(...any) error }) (in stetclient.Intent, err error) {
	var (
		header, answerHeader, answer []byte
		created                      int64
		settled, status, gone        sql.NullInt64
	)
	err = row.Scan(&in.Name, &in.Key, &in.Method, &in.URL, &in.Host, &header, &in.Body, &created, &in.Execution, &settled, &status, &gone, &answerHeader, &answer)
	if err != nil {
		return in, err
	}
	in.Created = time.UnixMicro(created)
	if in.Header, err = decode(header); err != nil || !settled.Valid {
		return in, err
	}
	in.Answer = &stetclient.Answer{Status: int(status.Int64), Body: answer, Gone: gone.Int64 != 0, Execution: in.Execution, At: time.UnixMicro(settled.Int64)}
	in.Answer.Header, err = decode(answerHeader)
	return in, err
}

// notNil returns b, or an empty slice for nil, because nil would be NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
