package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

// pg is a server of PostgreSQL.
type pg struct{ server *rig.PostgresServer }

// large are the settings of a server with ten million records: the usual share of memory, and
// no WAL of the filling, which a server without a standby does not need. Operations write the
// same. All other settings, autovacuum and durability included, are the defaults.
var large = map[string]string{"shared_buffers": "2GB", "max_wal_size": "3GB", "wal_level": "minimal", "max_wal_senders": "0"}

func startPostgres(ctx context.Context, r *rig.Rig) (*pg, error) {
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{Settings: large})
	return &pg{server}, err
}

// empty is a new database with stet's tables.
func (g *pg) empty(ctx context.Context) (pool *pgxpool.Pool, st *postgres.Store, closing func() error, err error) {
	name, err := g.server.CreateDatabase(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if pool, err = pgxpool.New(ctx, g.server.URL(name)); err != nil {
		return nil, nil, nil, err
	}
	if err = postgres.Migrate(ctx, pool, postgres.Options{}); err == nil {
		st, err = postgres.New(ctx, pool, postgres.Options{})
	}
	if err != nil {
		pool.Close()
		return nil, nil, nil, err
	}
	return pool, st, func() error {
		err := st.Close()
		pool.Close()
		return errors.Join(err, g.server.DropDatabase(context.WithoutCancel(ctx), name))
	}, nil
}

// fill makes a database with records.
func (g *pg) fill(ctx context.Context, size, expired int) (p *place, err error) {
	pool, st, closing, err := g.empty(ctx)
	if err != nil {
		return nil, err
	}
	p = &place{size: size, expired: expired, st: st, close: closing,
		written: func(ctx context.Context) (int64, error) { return walOf(ctx, pool) },
		weigh:   func(ctx context.Context) ([]weight, error) { return weightOf(ctx, pool) },
		held:    func(ctx context.Context) (float64, error) { return g.disk(ctx, pool) },
		flush:   func(ctx context.Context) error { return onOne(ctx, pool, []string{"CHECKPOINT"}) }}
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
	p.last, err = multiply(ctx, pool, first, size, expired)
	return p, err
}

// walOf is how many bytes of WAL the server has written.
func walOf(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	err = pool.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&n)
	return n, err
}

func weightOf(ctx context.Context, pool *pgxpool.Pool) (all []weight, err error) {
	var table, indexes float64
	err = pool.QueryRow(ctx, "SELECT pg_table_size('stet.records'), pg_indexes_size('stet.records')").Scan(&table, &indexes)
	all = []weight{{"", table + indexes}, {"table", table}, {"indexes", indexes}}
	if err != nil {
		return nil, err
	}
	rows, err := pool.Query(ctx, "SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) FROM pg_index WHERE indrelid = 'stet.records'::regclass ORDER BY 1")
	if err != nil {
		return nil, err
	}
	var w weight
	_, err = pgx.ForEachRow(rows, []any{&w.what, &w.bytes}, func() error {
		w.what = strings.TrimPrefix(w.what, "stet.records_")
		all = append(all, w)
		return nil
	})
	return all, err
}

// disk is what the server has on disk.
func (g *pg) disk(ctx context.Context, pool *pgxpool.Pool) (n float64, err error) {
	err = pool.QueryRow(ctx, "SELECT (SELECT sum(pg_database_size(oid)) FROM pg_database) + (SELECT sum(size) FROM pg_ls_waldir())").Scan(&n)
	return n, err
}

// dropIndexes drops the indexes and returns the statements that make them anew.
func dropIndexes(ctx context.Context, pool *pgxpool.Pool) (restore []string, err error) {
	rows, err := pool.Query(ctx, `SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid), coalesce(c.conname, ''), coalesce(pg_get_constraintdef(c.oid), '')
		FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.conrelid = i.indrelid WHERE i.indrelid = 'stet.records'::regclass`)
	if err != nil {
		return nil, err
	}
	var drop []string
	var name, index, constraint, definition string
	_, err = pgx.ForEachRow(rows, []any{&name, &index, &constraint, &definition}, func() error {
		if constraint == "" {
			drop, restore = append(drop, "DROP INDEX "+name), append(restore, index)
			return nil
		}
		drop = append(drop, "ALTER TABLE stet.records DROP CONSTRAINT "+constraint+" CASCADE") // and the reference of the histories
		restore = append(restore, "ALTER TABLE stet.records ADD CONSTRAINT "+constraint+" "+definition+" WITH (fillfactor = 69)", "ALTER INDEX "+name+" RESET (fillfactor)")
		return nil
	})
	if err != nil {
		return nil, err
	}
	restore = append(restore, "ALTER TABLE stet.records_history ADD FOREIGN KEY (id) REFERENCES stet.records (id) ON DELETE CASCADE")
	return restore, onOne(ctx, pool, drop)
}

// onOne carries out statements on one connection, one after the other.
func onOne(ctx context.Context, pool *pgxpool.Pool, statements []string) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
