package sqlite

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stet-go/stet/store"
	driver "modernc.org/sqlite"
)

// Primary result codes of SQLite (https://sqlite.org/rescode.html).
const (
	codePerm       = 3
	codeBusy       = 5
	codeLocked     = 6
	codeNoMem      = 7
	codeReadOnly   = 8
	codeIOErr      = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCantOpen   = 14
	codeTooBig     = 18
	codeConstraint = 19
	codeNotADB     = 26
)

// primary returns the primary result code of SQLite in err, or 0.
func primary(err error) int {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// nothing is what became of a call that is undone.
const nothing = "nothing was done"

// uncertain is what became of a call whose commit failed in a way that does not tell. It is said of
// the record: whether the operation was executed is for the engine to say.
const uncertain = "the record may or may not have been written"

// undone is the error of a call that had no effect.
type undone struct{ error }

func (undone) Is(target error) bool { return target == store.ErrNotDone } //nolint:errorlint // a sentinel
func (u undone) Unwrap() error      { return u.error }

func isBusy(err error) bool {
	code := primary(err)
	return code == codeBusy || code == codeLocked
}

// noTransaction reports whether err says that SQLite has already rolled back,
// for which it has no code of its own.
func noTransaction(err error) bool {
	return strings.Contains(err.Error(), "no transaction is active")
}

// uncommitted is the error of a COMMIT that failed. A constraint that is deferred to the
// COMMIT is the function's.
func (s *Store) uncommitted(err error, fate string) error {
	if primary(err) == codeConstraint {
		return &store.AbortedError{Cause: fmt.Errorf("sqlite: commit: a constraint failed (nothing was committed): %w", err)}
	}
	return s.explain("commit", err, fate)
}

// explain says what went wrong, what to do, and what became of the call.
func (s *Store) explain(step string, err error, fate string) error {
	if err == nil {
		return nil
	}
	what := ""
	switch primary(err) {
	case codeBusy, codeLocked:
		what = fmt.Sprintf("another process, or a transaction from DB, held the lock for longer than %v; keep transactions short or raise Options.BusyTimeout", s.o.BusyTimeout)
	case codeFull:
		what = "the disk is full; make room, then the same call works"
	case codeReadOnly, codePerm:
		what = "the file cannot be written; it, its folder and the files beside it with -wal and -shm must be writable"
	case codeCantOpen:
		what = "the file cannot be opened; its folder must exist and be writable"
	case codeIOErr:
		what = "the disk failed, or a quota was reached"
	case codeCorrupt:
		what = "the file is damaged; restore it from a backup"
	case codeNotADB:
		what = "the file is not an SQLite database, or is damaged"
	case codeTooBig:
		what = "the result is larger than SQLite can hold"
	case codeNoMem:
		what = "memory has run out"
	}
	if what == "" {
		return fmt.Errorf("sqlite: %s: %w (%s)", step, err, fate)
	}
	return fmt.Errorf("sqlite: %s: %s (%s): %w", step, what, fate, err)
}
