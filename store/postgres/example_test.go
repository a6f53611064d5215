package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
)

// The payment and its outcome are one commit.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		log.Fatal(err)
	}
	s, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()

	op := stet.Op{Scope: "account-7", Key: "order-1001", Fingerprint: stet.NewFingerprint([]byte("charge 10 EUR"))}
	te, err := stet.WithTx(engine, s)
	if err != nil {
		log.Fatal(err)
	}
	res, err := stet.DoTx(ctx, te, op, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		var id int64
		err := tx.QueryRow(ctx, "INSERT INTO payments (cents) VALUES (1000) RETURNING id").Scan(&id)
		return id, err
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("payment %d, replayed: %v", res.Value, res.Replayed)
}

// A store with the default names on a server of its own.
func ExampleOpen() {
	s, err := postgres.Open(context.Background(), "postgres://localhost/shop?pool_max_conns=20", postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
}

// Through PgBouncer in transaction mode nothing is prepared or listened to.
func ExampleNew_pgBouncer() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig("postgres://localhost:6432/shop")
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	s, err := postgres.New(ctx, pool, postgres.Options{PgBouncer: true})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
}

// Services that use database/sql, or a library on top of it, keep their
// transactions.
func ExampleOverSQL() {
	var (
		ctx    = context.Background()
		db     *sql.DB
		s      *postgres.Store
		engine *stet.Engine // over s
		op     = stet.Op{Scope: "account-7", Key: "order-1001"}
	)
	txs := postgres.OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
	te, err := stet.WithTx(engine, txs)
	if err != nil {
		log.Fatal(err)
	}
	_, err = stet.DoTx(ctx, te, op, func(ctx context.Context, tx *sql.Tx) (string, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO payments (cents) VALUES (1000)")
		return "paid", err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A worker finishes, with its own rows, a job that was claimed before.
func ExampleStore_SettleTx() {
	var (
		ctx   = context.Background()
		pool  *pgxpool.Pool
		s     *postgres.Store
		claim store.Claim // kept with the job
	)
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE jobs SET done = true WHERE id = 7"); err != nil {
			return err
		}
		return s.SettleTx(ctx, tx, claim, store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("done")}},
			store.Retention{Result: 24 * time.Hour, Tombstone: 720 * time.Hour})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// The order and the work that it means are one commit: a worker does it later, also
// if this process dies the moment after.
func ExampleStore_AcceptTx() {
	var (
		ctx = context.Background()
		te  *stet.TxEngine[pgx.Tx] // of stet.WithTx
		op  = stet.Op{Scope: "account-7", Key: "order-1001"}
	)
	err := te.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES (1001)"); err != nil {
			return err
		}
		st, err := te.Accept(ctx, tx, op, stet.Work{Name: "ship", Payload: []byte("order 1001")})
		if err == nil && !st.New {
			err = fmt.Errorf("the order is %v already", st.Record.State) // do not insert it again
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A worker: its writes and the outcome are one commit.
func ExampleStore_InTx() {
	var (
		ctx = context.Background()
		te  *stet.TxEngine[pgx.Tx] // of stet.WithTx
	)
	engine := te.Engine()
	items, err := engine.Due(ctx, 10, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	for _, item := range items {
		run, err := engine.Take(ctx, item)
		if err != nil || run.Replayed() {
			continue // another worker has it, or has completed it
		}
		err = te.Finish(ctx, run, func(ctx context.Context, tx pgx.Tx) (stet.Outcome, error) { // by InTx
			_, err := tx.Exec(ctx, "UPDATE orders SET shipped = true WHERE id = 1001")
			return stet.Outcome{Body: []byte(`"shipped"`)}, err
		})
		if err != nil {
			err = run.Release(ctx, stet.Again{After: time.Minute}) // it is run again, unless the commit came through after all
		}
		if err != nil {
			log.Print(err)
		}
	}
}

// Stuck operations: their owner died, and no operator has resolved them.
func ExampleStore_Browse() {
	var s *postgres.Store
	q := store.Query{States: []store.State{store.Unknown}, OlderThan: time.Hour}
	for {
		page, err := s.Browse(context.Background(), q)
		if err != nil {
			log.Fatal(err)
		}
		for _, rec := range page.Records {
			log.Printf("%v: attempt %d, claimed at %v", rec.ID, rec.Attempt, rec.ClaimedAt)
		}
		if q.After = page.Next; q.After == "" {
			return
		}
	}
}

// The migrations as plain SQL, for a migrator of one's own.
func ExampleMigrations() {
	steps, err := postgres.Migrations(postgres.Options{Schema: "idempotency"})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range steps {
		log.Printf("-- %d %s\n%s", m.Version, m.Name, m.Up)
	}
}
