package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	goosedb "github.com/pressly/goose/v3/database"
	"github.com/stet-go/stet/store/postgres"
)

// connectTimeout bounds each attempt to connect, where the URL does not.
const connectTimeout = 10 * time.Second

// database is a PostgreSQL database whose tables goose migrates.
type database struct {
	pool     *pgxpool.Pool
	db       *sql.DB // of pool
	provider *goose.Provider
	options  postgres.Options
	version  int // of the tables, when it was opened

	did map[int64]string // in words, by step; a commit that failed may be among it
}

// openDatabase connects and reads the version of the tables. The caller closes.
func openDatabase(ctx context.Context, url string, o postgres.Options, steps []postgres.Migration) (*database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, usage{fmt.Errorf("the database's URL: %w", err)} // without its password
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// Nothing is prepared, so that any mode of PgBouncer will do.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MaxConns, config.MinConns = 2, 0 // goose has one, and the version is read on the other
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	d := &database{pool: pool, db: stdlib.OpenDBFromPool(pool), options: o, did: map[int64]string{}}
	var all []*goose.Migration
	for _, step := range steps {
		all = append(all, goose.NewGoMigration(int64(step.Version), d.function(step, true), d.function(step, false)))
	}
	d.provider, err = goose.NewProvider(goose.DialectCustom, d.db, nil, goose.WithStore(versions{d}),
		goose.WithGoMigrations(all...), goose.WithDisableGlobalRegistry(true))
	if err == nil {
		d.version, err = postgres.SchemaVersion(ctx, pool, o)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *database) close() error {
	err := d.db.Close()
	d.pool.Close()
	return err
}

// function applies or undoes a step in goose's transaction. Another migrator may
// have done so since goose looked; then there is nothing left to do.
func (d *database) function(step postgres.Migration, up bool) *goose.GoFunc {
	return &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, step.Lock); err != nil {
			return err
		}
		version, err := postgres.SchemaVersion(ctx, querier{tx}, d.options)
		if err != nil {
			return err
		}
		text, before, word := step.Up, step.Version-1, "applied"
		done := version >= step.Version
		if !up {
			text, before, word = step.Down, step.Version, "undid"
			done = version < step.Version
		}
		switch {
		case version == before:
		case done:
			d.did[int64(step.Version)] = fmt.Sprintf("step %d, %s: another migrator was faster", step.Version, step.Name)
			return nil
		default:
			return fmt.Errorf("another migrator has brought the tables to version %d in the meantime; run 'stet migrate status'", version)
		}
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
		d.did[int64(step.Version)] = fmt.Sprintf("%s step %d, %s", word, step.Version, step.Name)
		return nil
	}}
}

// querier reads in a transaction of database/sql what package postgres reads by pgx.
type querier struct{ *sql.Tx }

func (q querier) QueryRow(ctx context.Context, text string, args ...any) pgx.Row {
	return q.QueryRowContext(ctx, text, args...)
}

// A step that finds a table locked is tried again, as postgres.Migrate does.
const (
	upTries = 60
	upPause = time.Second
)

func (d *database) up(ctx context.Context, w io.Writer) error {
	for try := 1; ; try++ {
		results, err := d.provider.Up(ctx)
		locked, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || locked.Code != "55P03" || try == upTries || ctx.Err() != nil {
			return d.report(w, results, err)
		}
		if try == 1 {
			if _, err := fmt.Fprintln(w, "a table is in use by a long transaction; trying again for 3 minutes"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(upPause):
		}
	}
}

// down undoes the step of version, which is the last one.
func (d *database) down(ctx context.Context, w io.Writer, version int) error {
	result, err := d.provider.ApplyVersion(ctx, int64(version), false)
	if errors.Is(err, goose.ErrNotApplied) {
		err = fmt.Errorf("another migrator has undone step %d in the meantime; run 'stet migrate status'", version)
	}
	if result == nil {
		return d.report(w, nil, err)
	}
	return d.report(w, []*goose.MigrationResult{result}, err)
}

// report prints the finished steps, and the error of the next one.
func (d *database) report(w io.Writer, results []*goose.MigrationResult, err error) error {
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results, err = partial.Applied, fmt.Errorf("step %d: %w", partial.Failed.Source.Version, partial.Err)
	}
	for _, r := range results {
		if _, err := fmt.Fprintln(w, d.did[r.Source.Version]); err != nil {
			return err
		}
	}
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	what := ""
	switch refusal.Code {
	case "25006":
		what = "the server or the session is read-only; connect to the primary: "
	case "42501":
		what = "up needs a role with CREATE on the schema, or, where there is no such schema yet, with CREATE on the database; down needs the owner of the tables: "
	case "42P07":
		what = "there is a table of another kind by this name; choose with --store-schema and --store-table: "
	case "2BP01":
		what = "something else depends on the tables; drop it first: "
	}
	return fmt.Errorf("%s%w", what, err)
}

// stepState is what status says of a step.
type stepState struct {
	Step      int        `json:"step"`
	Name      string     `json:"name"`
	State     string     `json:"state"` // applied or pending
	AppliedAt *time.Time `json:"applied_at,omitempty"`
}

// states says of each step whether it is applied, and since when.
func (d *database) states(ctx context.Context, steps []postgres.Migration) ([]stepState, error) {
	status, err := d.provider.Status(ctx)
	if err != nil {
		return nil, err
	}
	var states []stepState
	for i, s := range status { // in order
		state := stepState{Step: steps[i].Version, Name: steps[i].Name, State: string(s.State)}
		if s.State == goose.StateApplied && !s.AppliedAt.IsZero() {
			at := s.AppliedAt.UTC()
			state.AppliedAt = &at
		}
		states = append(states, state)
	}
	return states, nil
}

// versions is goose's bookkeeping. The steps themselves record their version, in
// the table that the store checks; goose reads that, and a table of its own,
// which could come to say something else, does not exist.
type versions struct{ d *database }

func (v versions) Tablename() string { return v.d.options.Table }

func (v versions) TableExists(context.Context, goosedb.DBTxConn) (bool, error) { return true, nil }

func (v versions) CreateVersionTable(context.Context, goosedb.DBTxConn) error { return nil }

func (v versions) Insert(context.Context, goosedb.DBTxConn, goosedb.InsertRequest) error { return nil }

func (v versions) Delete(context.Context, goosedb.DBTxConn, int64) error { return nil }

func (v versions) GetLatestVersion(ctx context.Context, _ goosedb.DBTxConn) (int64, error) {
	version, err := postgres.SchemaVersion(ctx, v.d.pool, v.d.options)
	return int64(version), err
}

func (v versions) GetMigration(ctx context.Context, db goosedb.DBTxConn, version int64) (*goosedb.GetMigrationResult, error) {
	latest, err := v.GetLatestVersion(ctx, db)
	if err != nil {
		return nil, err
	}
	if version > latest {
		return nil, goosedb.ErrVersionNotFound
	}
	at, err := postgres.AppliedAt(ctx, v.d.pool, v.d.options)
	return &goosedb.GetMigrationResult{IsApplied: true, Timestamp: at[int(version)]}, err
}

func (v versions) ListMigrations(ctx context.Context, db goosedb.DBTxConn) (all []*goosedb.ListMigrationsResult, err error) {
	latest, err := v.GetLatestVersion(ctx, db)
	if err != nil {
		return nil, err
	}
	for version := latest; version >= 0; version-- { // 0 is goose's word for an empty database
		all = append(all, &goosedb.ListMigrationsResult{Version: version, IsApplied: true})
	}
	return all, nil
}
