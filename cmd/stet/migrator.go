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

// up applies the missing steps. Another migrator may apply some of them at the same time.
func (d *database) up(ctx context.Context, w io.Writer) error {
	stop := progress(w, func() string { return "a table is in use by a long transaction, or large; trying for 3 minutes" })
	err := postgres.Migrate(ctx, d.pool, d.options)
	stop()
	return explain(err)
}

// down undoes the last step.
func (d *database) down(ctx context.Context, w io.Writer, step postgres.Migration, force bool) error {
	if err := d.undo(ctx, step, force); err != nil {
		return fmt.Errorf("step %d: %w", step.Version, explain(err))
	}
	_, err := fmt.Fprintf(w, "undid step %d, %s\n", step.Version, step.Name)
	return err
}

// undo executes the SQL of a step in a transaction, if it is still the last one: another migrator
// may have changed the tables.
func (d *database) undo(ctx context.Context, step postgres.Migration, force bool) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, step.Lock); err != nil {
			return err
		}
		version, err := postgres.SchemaVersion(ctx, tx, d.options)
		if err != nil {
			return err
		}
		if version != step.Version {
			return fmt.Errorf("another migrator has brought the tables to version %d in the meantime; run 'stet migrate status'", version)
		}
		if err := d.refuseLoss(ctx, tx, step, force); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, step.Down, pgx.QueryExecModeSimpleProtocol) // several statements
		return err
	})
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// refuseLoss returns an error if undoing the step would lose accepted work and is not forced: operations
// that were accepted and have not ended, and messages that were not sent.
func (d *database) refuseLoss(ctx context.Context, q querier, step postgres.Migration, force bool) error {
	if step.Version > 1 || force {
		return nil
	}
	var jobs, messages int
	table := pgx.Identifier{d.options.Schema, d.options.Table}.Sanitize()
	err := q.QueryRow(ctx, "SELECT (SELECT count(*) FROM "+table+" WHERE open_state IS NOT NULL AND work IS NOT NULL), (SELECT count(*) FROM "+table+" WHERE relay_due IS NOT NULL)").Scan(&jobs, &messages)
	if err == nil && jobs+messages > 0 {
		err = fmt.Errorf("%d accepted operations and %d unsent messages would be lost; let workers and relays finish them, or give --force", jobs, messages)
	}
	return explain(err)
}

// stepHints says what to do about refusals of PostgreSQL, by their code.
var stepHints = map[string]string{
	"25006": "the server or the session is read-only; connect to the primary: ",
	"42501": "up needs a role with CREATE on the schema, or, if there is no such schema yet, with CREATE on the database; down needs the owner of the tables: ",
	"42P07": "there is a table of another kind by this name; choose with --store-schema and --store-table: ",
	"2BP01": "something else depends on the tables; drop it first: ",
}

func explain(err error) error {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fmt.Errorf("%s%w", stepHints[refusal.Code], err)
	}
	return err
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
