// Command pairs measures claim + settle of 1 KB on the SQLite store, whose
// concurrent calls share commits, beside one transaction per operation on the
// same engine with the same durability (WAL, synchronous=FULL).
package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the baseline's driver

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

var (
	each = flag.Duration("each", time.Second, "how long one measurement takes")
	n    = flag.Int("rounds", 5, "rounds")
	dir  = flag.String("dir", "", "where the database files go; default: a temporary folder")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "pairs:", err)
		os.Exit(1)
	}
}

// pair is one claim and one settle of a new operation.
type pair func(ctx context.Context, id store.ID) error

var result = bytes.Repeat([]byte("r"), 1024)

func run(ctx context.Context) (err error) {
	tmp, err := os.MkdirTemp(*dir, "stet-pairs-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	store, err := sqlite.Open(ctx, filepath.Join(tmp, "stet.db"), sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	plain, closePlain, err := openPlain(ctx, filepath.Join(tmp, "plain.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closePlain()) }()

	fmt.Println("pairs of claim + settle (1 KB) per second, synchronous=FULL")
	fmt.Printf("%8s %12s %18s %8s\n", "callers", "stet", "one by one", "ratio")
	for _, callers := range []int{1, 16, 64, 256} {
		rates, err := rounds.Compare(*n,
			rounds.Contender{Name: "stet", Measure: func() (float64, error) { return load(ctx, callers, grouped(store)) }},
			rounds.Contender{Name: "plain", Measure: func() (float64, error) { return load(ctx, callers, plain) }})
		if err != nil {
			return err
		}
		ratio := rounds.Ratio(rates["stet"], rates["plain"])
		fmt.Printf("%8d %12.0f %18.0f %8.2f\n", callers, rounds.Median(rates["stet"]), rounds.Median(rates["plain"]), ratio)
		rounds.Figure(fmt.Sprintf("sqlite_pairs_%d", callers), rounds.Median(rates["stet"]), "pairs/s")
		rounds.Figure(fmt.Sprintf("sqlite_pairs_ratio_%d", callers), ratio, "x one transaction per operation")
	}
	return nil
}

func grouped(st *sqlite.Store) pair {
	return func(ctx context.Context, id store.ID) error {
		owner := store.NewOwner()
		rec, err := st.Claim(ctx, store.ClaimRequest{ID: id, Owner: owner, Lease: 30 * time.Second})
		if err != nil {
			return err
		}
		if rec.State != store.Running || rec.Owner != owner {
			return fmt.Errorf("not granted: %v", rec.State)
		}
		return st.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}},
			store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour})
	}
}

// openPlain is what one writes without stet: an insert in a transaction of its
// own, and an update in another.
func openPlain(ctx context.Context, path string) (pair, func() error, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer; waiting in its busy handler would be slower
	_, err = db.ExecContext(ctx, `CREATE TABLE ops (id BLOB PRIMARY KEY, owner BLOB, state INT, lease INT, result BLOB) WITHOUT ROWID`)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	claim, err1 := db.PrepareContext(ctx, `INSERT INTO ops (id, owner, state, lease) VALUES (?, ?, 1, ?) ON CONFLICT DO NOTHING`)
	settle, err2 := db.PrepareContext(ctx, `UPDATE ops SET state = 2, result = ? WHERE id = ? AND owner = ? AND state = 1`)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return func(ctx context.Context, id store.ID) error {
		owner := store.NewOwner()
		if err := one(claim.ExecContext(ctx, id[:], owner[:], time.Now().Add(30*time.Second).UnixMicro())); err != nil {
			return err
		}
		return one(settle.ExecContext(ctx, result, id[:], owner[:]))
	}, db.Close, nil
}

func one(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("%d rows changed, %w", n, err)
	}
	return nil
}

var keys atomic.Int64

// load makes pairs with so many callers for a while.
func load(ctx context.Context, callers int, p pair) (rate float64, err error) {
	rate, _, err = rounds.Load(callers, *each, func(int) error { return p(ctx, store.Digest("bench", "s", fmt.Sprint(keys.Add(1)))) })
	return rate, err
}
