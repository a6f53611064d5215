package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stet-go/stet/store"
)

// Codes of PostgreSQL (appendix A of its manual) that something is done about.
const (
	codeDivision      = "22012"
	codeReadOnly      = "25006"
	codeAborted       = "25P02"
	codeIdle          = "25P03"
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeUnique        = "23505"
	codeNoTable       = "42P01"
	codeNoStatement   = "26000"
	codeStatementHere = "42P05"
	codeForbidden     = "42501"
	codeDiskFull      = "53100"
	codeTooMany       = "53300"
	codeNoMemory      = "53200"
	codeLocked        = "55P03"
)

var (
	errClosed = errors.New("postgres: the store is closed")
	// errDamaged is what an unreadable row gives.
	errDamaged = errors.New("the table is damaged, or was written by something else")
	// errUnreadable is the same of one record.
	errUnreadable = fmt.Errorf("%w: %w", store.ErrDamaged, errDamaged)
)

// sqlState returns the code that the server gave, "" if it gave none.
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// answered reports whether err is the server's answer to a statement, after
// which the connection continues. Anything else leaves open what happened.
func answered(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	severity := e.SeverityUnlocalized
	if severity == "" {
		severity = e.Severity
	}
	return severity == "ERROR"
}

// lockedRow reports whether a statement has waited without effect for a row, and not for
// the table: the server says which one.
func lockedRow(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == codeLocked && e.Where != ""
}

// transient reports whether a statement of the store's own may be tried again
// after err: its transaction lost against another one, or its connection went. A connection
// that was refused with errLossy would be refused again, and a repetition closes the others.
func transient(err error) bool {
	switch sqlState(err) {
	case codeSerialization, codeDeadlock, codeNoStatement, codeStatementHere:
		return true
	}
	return !answered(err) && !errors.Is(err, store.ErrDamaged) && !errors.Is(err, errLossy)
}

// explain says what went wrong and what to do.
func explain(step string, err error) error {
	if err == nil {
		return nil
	}
	what, code := "", codeOf(err)
	switch code {
	case codeSerialization:
		what = "another transaction, or a heartbeat, has written to the same rows since this one began; try again, or at read committed: "
	case codeReadOnly:
		what = "the server or the session is read-only; connect to the primary: "
	case codeNoTable:
		what = "the tables are not there; run 'stet migrate up', or call postgres.Migrate: "
	case codeForbidden:
		what = "the role lacks a right; the owner of the tables grants it, with Options.Schema in place of stet: GRANT USAGE ON SCHEMA stet TO role; " +
			"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA stet TO role; GRANT USAGE ON ALL SEQUENCES IN SCHEMA stet TO role: "
	case codeAborted:
		what = "a statement of the function failed, and the function went on; put a savepoint (tx.Begin) around a statement that may fail: "
	case codeIdle:
		what = "the function left the transaction idle for longer than idle_in_transaction_session_timeout: "
	case codeDiskFull:
		what = "the server's disk is full: "
	case codeNoMemory:
		what = "the server is out of memory, or of room for locks (max_locks_per_transaction): "
	case codeTooMany:
		what = "the server takes no more connections; raise max_connections or lower the pools: "
	case codeLocked:
		what = "another transaction has the record locked, or the table: "
	case codeStatementHere, codeNoStatement:
		what = "prepared statements do not survive between transactions here; set Options.PgBouncer: "
	}
	err = fmt.Errorf("postgres: %s: %s%w", step, what, err)
	if strings.HasPrefix(code, "25P") {
		return &store.AbortedError{Cause: err}
	}
	return err
}

// uncommitted is the error of a COMMIT that the server has refused. A constraint or a trigger
// that is deferred to the COMMIT is the function's, and so is a ROLLBACK in place of it.
func uncommitted(err error) error {
	said := fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	switch code := codeOf(err); {
	case strings.HasPrefix(code, "23"), strings.HasPrefix(code, "P0"), errors.Is(err, pgx.ErrTxCommitRollback):
		return &store.AbortedError{Cause: said}
	}
	return said
}

// hash64 is the start of a SHA-256 over length-prefixed parts.
func hash64(parts ...string) uint64 {
	var stack [192]byte // enough for nearly all
	b := stack[:0]
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:8])
}
