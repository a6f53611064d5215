package river_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	stetriver "github.com/stet-go/stet/stetwork/river"
	"github.com/stet-go/stet/store/postgres"
)

// An API and its worker in one process: an order, its acceptance and its job are
// one commit; so are the shipment and the outcome.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	store, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	insert, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		log.Fatal(err)
	}
	queue, err := stetriver.New(insert, stetriver.Options{})
	if err != nil {
		log.Fatal(err)
	}
	worker, err := stetwork.New(engine, stetwork.Options{Queue: queue})
	if err != nil {
		log.Fatal(err)
	}
	te, err := stet.WithTx(engine, store)
	if err != nil {
		log.Fatal(err)
	}
	type order struct{ Book string }
	err = stetwork.HandleTx(worker, te, "ship", func(ctx context.Context, tx pgx.Tx, o order) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO shipments (book) VALUES ($1)", o.Book)
		return "shipped", err
	})
	if err != nil {
		log.Fatal(err)
	}
	workers := river.NewWorkers()
	if err := stetriver.AddWorker(workers, worker); err != nil {
		log.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: worker.Concurrency()}}})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	// In the handler of POST /orders:
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		work, err := stetwork.NewWork("ship", order{Book: "Emma"})
		if err != nil {
			return err
		}
		_, err = queue.AcceptTx(ctx, te, tx, stet.Op{Scope: "customer 7", Key: "8e03978e"}, work)
		return err
	})
	if err != nil {
		log.Print(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Print(err)
	}
}

// Where something else accepts, in a transaction that it began, the job is inserted
// beside it.
func ExampleQueue_InsertTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	store, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	insert, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		log.Fatal(err)
	}
	queue, err := stetriver.New(insert, stetriver.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = store.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (book) VALUES ($1)", "Emma"); err != nil {
			return err
		}
		work := stet.Work{Name: "ship", Payload: []byte(`{"Book":"Emma"}`), Queued: stetwork.DefaultAgain} // left to the job
		te, err := stet.WithTx(engine, store)
		if err != nil {
			return err
		}
		st, err := te.Accept(ctx, tx, stet.Op{Scope: "customer 7", Key: "8e03978e"}, work)
		if err != nil || !st.New {
			return err
		}
		return queue.InsertTx(ctx, tx, stet.Item{ID: st.Record.ID, Name: work.Name})
	})
	if err != nil {
		log.Print(err)
	}
}
