package mysql

import (
	"errors"
	"fmt"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/stet-go/stet/store"
)

// Error numbers of MySQL and MariaDB.
const (
	errDiskFull      = 1021
	errTooMany       = 1040
	errNoDatabase    = 1044
	errDuplicate     = 1062
	errNoTable       = 1146
	errTooLarge      = 1153
	errLockWait      = 1205
	errNoSavepoint   = 1305
	errDeadlock      = 1213
	errNoRight       = 1227
	errForbidden     = 1142
	errReadOnly      = 1290
	errStatementLog  = 1665
	errChangedRecord = 1020
)

// advice says what an error means, and what to do.
var advice = map[uint16]string{
	errDiskFull:      "the server's disk is full",
	errTooMany:       "the server takes no more connections; raise max_connections or lower the pools",
	errNoDatabase:    "the user has no right to the database",
	errForbidden:     "the user lacks a right; GRANT SELECT, INSERT, UPDATE, DELETE ON stet_records, stet_history and stet_meta",
	errNoTable:       "the tables do not exist; run 'stet migrate up', or call mysql.Migrate",
	errTooLarge:      "max_allowed_packet of the server is too small, or was lowered; restart the process",
	errLockWait:      "another transaction has the record locked",
	errDeadlock:      "the server has ended a deadlock; try again",
	errReadOnly:      "the server is read-only; connect to the primary",
	errStatementLog:  "binlog_format is STATEMENT; set it to ROW or MIXED",
	errChangedRecord: "a heartbeat has written the record since the transaction began; begin it at READ COMMITTED",
}

// numberOf returns the server's error number in err, or 0.
func numberOf(err error) uint16 {
	if e, ok := errors.AsType[*driver.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// undone is the error of a call that had no effect.
type undone struct{ error }

func (undone) Is(target error) bool { return target == store.ErrNotDone } //nolint:errorlint // a sentinel
func (u undone) Unwrap() error      { return u.error }

var errClosed error = undone{errors.New("mysql: the store is closed")}

// explain says what failed, and what to do.
func explain(step string, err error) error {
	if err == nil {
		return nil
	}
	if what := advice[numberOf(err)]; what != "" {
		return fmt.Errorf("mysql: %s: %s: %w", step, what, err)
	}
	return fmt.Errorf("mysql: %s: %w", step, err)
}

// buried is how long the tombstone of a damaged record is kept.
const buried = 30 * 24 * time.Hour

// unreadable is the error of a record that was damaged, or written by another program.
func unreadable(id store.ID, what string) error {
	return fmt.Errorf("mysql: %w: that of %v is damaged, or was written by something else: %s", store.ErrDamaged, id, what)
}

// damage is the records of a call that cannot be read or reached. They hide no other.
type damage struct {
	claims []store.Claim
	cause  error
}

func (d *damage) add(c store.Claim, cause error) {
	d.claims = append(d.claims, c)
	if d.cause == nil {
		d.cause = cause
	}
}

// err is nil if there are none.
func (d *damage) err() error {
	if len(d.claims) == 0 {
		return nil
	}
	return &store.PartialError{Claims: d.claims, Cause: d.cause}
}
