package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// openSQLite opens a new file in a folder of its own.
func openSQLite(ctx context.Context) (st *sqlite.Store, path string, closing func() error, err error) {
	dir, err := os.MkdirTemp("", "stet-scale-")
	if err != nil {
		return nil, "", nil, err
	}
	path = filepath.Join(dir, "stet.db")
	if st, err = sqlite.Open(ctx, path, sqlite.Options{}); err != nil {
		return nil, "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return st, path, func() error { return errors.Join(st.Close(), os.RemoveAll(dir)) }, nil
}

// fillSQLite makes a file with records.
func fillSQLite(ctx context.Context, size, expired int) (p *place, err error) {
	st, path, closing, err := openSQLite(ctx)
	if err != nil {
		return nil, err
	}
	p = &place{size: size, expired: expired, st: st, close: closing,
		weigh: func(context.Context) ([]weight, error) {
			info, err := os.Stat(path)
			if err != nil {
				return nil, err
			}
			return []weight{{"", float64(info.Size())}}, nil
		},
		held: func(context.Context) (float64, error) { return onDisk(path) }}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	first, err := specimen(ctx, st)
	if err != nil {
		return nil, err
	}
	p.result = first.Result
	return p, multiplySQLite(ctx, st.DB(), first, size, expired)
}

// onDisk is the size of a file, its WAL and its shared-memory file.
func onDisk(path string) (all float64, err error) {
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		if err != nil && !os.IsNotExist(err) {
			return 0, err
		}
		if err == nil {
			all += float64(info.Size())
		}
	}
	return all, nil
}

// multiplySQLite is multiply.
func multiplySQLite(ctx context.Context, db *sql.DB, first store.Record, size, expired int) error {
	insert, err := copySQLite(ctx, db, first.Fence)
	if err != nil {
		return err
	}
	now := time.Now()
	const together = 20_000
	for from := 1; from < size; from += together {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		made, err := tx.PrepareContext(ctx, insert)
		for i := from; i < min(from+together, size) && err == nil; i++ {
			req := request(filled(i))
			at := claimedAt(now, i, size, expired)
			_, err = made.ExecContext(ctx, req.ID[:], req.Scope[:], req.Fingerprint[:], req.Owner[:], first.Fence+int64(i), at.Sub(first.ClaimedAt).Microseconds())
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		if done := from + together - 1; done%200_000 == 0 {
			progress("SQLite: %d of %d records made", min(done, size), size)
		}
	}
	_, err = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

// copySQLite is the statement that copies a record. Its times, which are known by being as
// great as microseconds since 1970 are, are moved.
func copySQLite(ctx context.Context, db *sql.DB, fence int64) (string, error) {
	rows, err := db.QueryContext(ctx, "SELECT * FROM stet_records WHERE fence = ?", fence)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }() // only read
	names, err := rows.Columns()
	if err != nil {
		return "", err
	}
	values := make([]any, len(names))
	for i := range values {
		values[i] = new(any)
	}
	if !rows.Next() {
		return "", errors.Join(rows.Err(), errors.New("the first record is not there"))
	}
	if err := rows.Scan(values...); err != nil {
		return "", err
	}
	own := map[string]string{"id": "?1", "scope": "?2", "fingerprint": "?3", "owner": "?4", "fence": "?5"}
	var to []string
	for i, name := range names {
		n, number := (*values[i].(*any)).(int64)
		switch {
		case own[name] != "":
			to = append(to, own[name])
		case number && n > 1e15:
			to = append(to, name+" + ?6")
		default:
			to = append(to, name)
		}
	}
	return fmt.Sprintf("INSERT INTO stet_records (%s) SELECT %s FROM stet_records WHERE fence = %d", strings.Join(names, ", "), strings.Join(to, ", "), fence), nil
}
