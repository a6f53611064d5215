package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
)

// A migrator that waits for a table would make every reader of it wait as well.
func TestMigrateBehindALongReaderLetsOthersRead(t *testing.T) {
	t.Parallel()
	url := rig.Postgres(t).Database(t)
	connected := func() *pgxpool.Pool {
		pool, err := pgxpool.New(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	pool := connected()
	steps, err := Migrations(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		execSQL(t, pool, step.Up)
	}
	n, err := newNames(Options{})
	if err != nil {
		t.Fatal(err)
	}
	steps = append(steps, Migration{Version: schemaVersion + 1, Name: "alter", Up: lockTimeout + "ALTER TABLE stet.records ADD COLUMN test integer"})
	reader, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Rollback(context.Background()) //nolint:errcheck // it is over by then
	if _, err := reader.Exec(t.Context(), "SELECT count(*) FROM stet.records"); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	other := connected()
	go func() { migrated <- n.migrateAll(t.Context(), other, steps) }()
	waiting := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for end := time.Now().Add(time.Minute); waiting() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("Migrate does not wait for the table")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT 1 FROM stet.records WHERE id = '\\x00'"); err != nil {
		t.Errorf("a look by key behind Migrate: %v", err)
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Errorf("Migrate, when the reader has ended: %v", err)
	}
}

func TestConcurrentMigrationsSucceedAtEachDefaultIsolation(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(rig.Postgres(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	migrated := make(chan error)
	for range 4 {
		go func() { migrated <- Migrate(t.Context(), pool, Options{}) }()
	}
	for range 4 {
		if err := <-migrated; err != nil {
			t.Error(err)
		}
	}
}
