package sqlite

import (
	"errors"
	"fmt"

	"github.com/stet-go/stet/store"
	modernc "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// advice says what an error of SQLite means, and what to do, by its primary result code
// (https://sqlite.org/rescode.html).
var advice = map[int]string{
	sqlite3.SQLITE_FULL:     "the disk is full; make room, then the same call works",
	sqlite3.SQLITE_READONLY: "the file cannot be written; it, its folder and the files beside it with -wal and -shm must be writable",
	sqlite3.SQLITE_PERM:     "the file cannot be written; it, its folder and the files beside it with -wal and -shm must be writable",
	sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; its folder must exist and be writable",
	sqlite3.SQLITE_IOERR:    "the disk failed, or a quota was reached",
	sqlite3.SQLITE_CORRUPT:  "the file is damaged; restore it from a backup",
	sqlite3.SQLITE_NOTADB:   "the file is not an SQLite database, or is damaged",
	sqlite3.SQLITE_TOOBIG:   "the result is larger than SQLite can hold",
	sqlite3.SQLITE_NOMEM:    "memory has run out",
}

// primary returns the primary result code of SQLite in err, or 0.
func primary(err error) int {
	if e, ok := errors.AsType[*modernc.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// The effect of a call that failed. The second is about the record: only the engine knows whether the
// operation was executed.
const (
	nothing   = "nothing was done"
	uncertain = "the record may or may not have been written"
)

// undone is the error of a call that had no effect.
type undone struct{ error }

func (undone) Is(target error) bool { return target == store.ErrNotDone } //nolint:errorlint // a sentinel
func (u undone) Unwrap() error      { return u.error }

func isBusy(err error) bool {
	code := primary(err)
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}

// uncommitted is the error of a COMMIT that failed. If a deferred constraint failed, the function is
// the cause.
func (s *Store) uncommitted(err error, fate string) error {
	if primary(err) == sqlite3.SQLITE_CONSTRAINT {
		return &store.AbortedError{Cause: fmt.Errorf("sqlite: commit: a constraint failed (nothing was committed): %w", err)}
	}
	return s.explain("commit", err, fate)
}

// explain says what went wrong, what to do, and what effect the call had.
func (s *Store) explain(step string, err error, fate string) error {
	if err == nil {
		return nil
	}
	what := advice[primary(err)]
	if isBusy(err) {
		what = fmt.Sprintf("another process, or a transaction from DB, held the lock for longer than %v; keep transactions short or raise Options.BusyTimeout", s.o.BusyTimeout)
	}
	if what == "" {
		return fmt.Errorf("sqlite: %s: %w (%s)", step, err, fate)
	}
	return fmt.Errorf("sqlite: %s: %s (%s): %w", step, what, fate, err)
}
