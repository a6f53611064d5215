package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store/postgres"
)

// connectTimeout bounds each attempt to connect, if the URL does not.
const connectTimeout = 10 * time.Second

// database is a PostgreSQL database in which the tables are made.
type database struct {
	pool    *pgxpool.Pool
	options postgres.Options
	version int // of the tables, when it was opened
}

// openDatabase connects and reads the version of the tables. The caller closes the pool.
func openDatabase(ctx context.Context, url string, o postgres.Options) (*database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, usage{fmt.Errorf("the database's URL: %w", err)} // without its password
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// Nothing is prepared, so that any mode of PgBouncer will do.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MaxConns, config.MinConns = 1, 0
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	version, err := postgres.SchemaVersion(ctx, pool, o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &database{pool, o, version}, nil
}

// A step that finds a table locked is tried again, as postgres.Migrate does.
const (
	upTries = 60
	upPause = time.Second
)

// up applies the steps, each in its own transaction.
func (d *database) up(ctx context.Context, w io.Writer, steps []postgres.Migration) error {
	waited := false
	for _, step := range steps {
		says := fmt.Sprintf("applied step %d, %s", step.Version, step.Name)
		for try := 1; ; try++ {
			err := d.run(ctx, step, step.Up, step.Version-1)
			if other, ok := errors.AsType[*otherVersion](err); ok && other.version >= step.Version {
				says, err = fmt.Sprintf("step %d, %s: another migrator was faster", step.Version, step.Name), nil
			}
			if err == nil {
				break
			}
			locked, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || locked.Code != "55P03" || try == upTries {
				return explainStep(step, err)
			}
			if !waited {
				waited = true
				fmt.Fprintln(w, "a table is in use by a long transaction; trying again for 3 minutes")
			}
			if !timer.Sleep(ctx, upPause) {
				return ctx.Err()
			}
		}
		if _, err := fmt.Fprintln(w, says); err != nil {
			return err
		}
	}
	return nil
}

// down undoes the last step.
func (d *database) down(ctx context.Context, w io.Writer, step postgres.Migration) error {
	if err := d.run(ctx, step, step.Down, step.Version); err != nil {
		return explainStep(step, err)
	}
	_, err := fmt.Fprintf(w, "undid step %d, %s\n", step.Version, step.Name)
	return err
}

// run executes the SQL of a step in a transaction, if the tables have version from: another
// migrator may have changed them. Then it returns *otherVersion.
func (d *database) run(ctx context.Context, step postgres.Migration, sql string, from int) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, step.Lock); err != nil {
			return err
		}
		version, err := postgres.SchemaVersion(ctx, tx, d.options)
		if err != nil {
			return err
		}
		if version != from {
			return &otherVersion{version}
		}
		_, err = tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol) // several statements
		return err
	})
}

// otherVersion is the error of a step that does not fit the tables.
type otherVersion struct{ version int }

func (e *otherVersion) Error() string {
	return fmt.Sprintf("another migrator has brought the tables to version %d in the meantime; run 'stet migrate status'", e.version)
}

// stepHints says what to do about refusals of PostgreSQL, by their code.
var stepHints = map[string]string{
	"25006": "the server or the session is read-only; connect to the primary: ",
	"42501": "up needs a role with CREATE on the schema, or, if there is no such schema yet, with CREATE on the database; down needs the owner of the tables: ",
	"42P07": "there is a table of another kind by this name; choose with --store-schema and --store-table: ",
	"2BP01": "something else depends on the tables; drop it first: ",
}

func explainStep(step postgres.Migration, err error) error {
	hint := ""
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		hint = stepHints[refusal.Code]
	}
	return fmt.Errorf("%sstep %d: %w", hint, step.Version, err)
}

// stepState is a step as status shows it.
type stepState struct {
	Step      int        `json:"step"`
	Name      string     `json:"name"`
	State     string     `json:"state"` // applied or pending
	AppliedAt *time.Time `json:"applied_at,omitempty"`
}

func (d *database) states(ctx context.Context, steps []postgres.Migration) ([]stepState, error) {
	applied, err := postgres.AppliedAt(ctx, d.pool, d.options)
	if err != nil {
		return nil, err
	}
	var states []stepState
	for _, s := range steps {
		state := stepState{Step: s.Version, Name: s.Name, State: "pending"}
		if s.Version <= d.version {
			state.State = "applied"
		}
		if at, ok := applied[s.Version]; ok {
			at = at.UTC()
			state.AppliedAt = &at
		}
		states = append(states, state)
	}
	return states, nil
}
