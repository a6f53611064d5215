package demo

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/stet-go/stet/internal/crash"
)

// The ledger has no unique constraint on the payment: a second charge goes
// through, as it would at a card processor, and shows afterwards. The operation
// is what a proxy called it; it is no constraint either.
const ledgerSchema = `CREATE TABLE IF NOT EXISTS charges (
	id        INTEGER PRIMARY KEY AUTOINCREMENT,
	payment   TEXT NOT NULL,
	amount    INTEGER NOT NULL,
	receipt   TEXT NOT NULL,
	operation TEXT
);
CREATE INDEX IF NOT EXISTS charges_operation ON charges (operation);
CREATE TABLE IF NOT EXISTS given_up (
	operation TEXT PRIMARY KEY,
	fence     INTEGER NOT NULL
)`

// work is how long a charge takes beside its insert. It is spent between the
// insert and the commit, where a kill hurts.
const work = time.Millisecond

// payment is what a client asks for.
type payment struct {
	Payment string `json:"payment"`
	Amount  int64  `json:"amount"` // in cents
}

// charge is a row of the ledger, and what a client is told of it.
type charge struct {
	ID      int64  `json:"charge"`
	Payment string `json:"payment"`
	Amount  int64  `json:"amount"`
	Receipt string `json:"receipt"` // random, so that no two charges answer alike
}

// book charges p within tx. operation is "" unless there is a proxy to name it.
func book(ctx context.Context, tx *sql.Tx, p payment, operation string) (charge, error) {
	c := charge{Payment: p.Payment, Amount: p.Amount, Receipt: rand.Text()}
	res, err := tx.ExecContext(ctx, `INSERT INTO charges (payment, amount, receipt, operation) VALUES (?, ?, ?, NULLIF(?, ''))`,
		c.Payment, c.Amount, c.Receipt, operation)
	if err != nil {
		return charge{}, err
	}
	if c.ID, err = res.LastInsertId(); err != nil {
		return charge{}, err
	}
	return c, crash.Pause(ctx, work)
}

func ledgerPath(dir string) string { return filepath.Join(dir, "payments.db") }

// openPlain opens the database as a careful service without stet would: the
// durability is that of stet's own store.
func openPlain(path string) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path), RawQuery: "_txlock=immediate" +
		"&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer; a queue is fairer than its lock
	return db, nil
}

// readLedger returns the charges of a service that no longer runs.
func readLedger(ctx context.Context, path string) (all []charge, err error) {
	db, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	all, err = charges(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("the ledger cannot be read: %w", err)
	}
	return all, nil
}

func charges(ctx context.Context, db *sql.DB) (all []charge, err error) {
	rows, err := db.QueryContext(ctx, `SELECT id, payment, amount, receipt FROM charges ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var c charge
		if err := rows.Scan(&c.ID, &c.Payment, &c.Amount, &c.Receipt); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
}
