package stetwork_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// An order is accepted now and shipped later, once, however often it is sent.
func Example() {
	type order struct{ Book string }
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	worker, err := stetwork.New(engine, stetwork.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = stetwork.Handle(worker, "ship", func(_ context.Context, o order) (string, error) {
		fmt.Println("shipping", o.Book)
		return "parcel 7", nil
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- worker.Run(ctx) }()

	work, err := stetwork.NewWork("ship", order{Book: "Emma"})
	if err != nil {
		log.Fatal(err)
	}
	op := stet.Op{Scope: "customer 7", Key: "8e03978e"}
	for range 3 {
		if _, err := engine.Accept(ctx, op, work); err != nil {
			log.Fatal(err)
		}
	}
	st, err := engine.Await(ctx, op.Scope, engine.ID(op.Scope, op.Key))
	if err != nil {
		log.Fatal(err)
	}
	var parcel string
	err = st.Outcome.Decode(&parcel)
	fmt.Println(st.Record.State, parcel, err)

	stop() // and wait for what still runs
	fmt.Println(<-done)
	// Output:
	// shipping Emma
	// completed parcel 7 <nil>
	// <nil>
}

// The row of the shipment and the outcome are one commit.
func ExampleHandleTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "stet.db"), sqlite.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE shipments (book TEXT)"); err != nil {
		log.Print(err)
		return
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	defer engine.Close()
	worker, err := stetwork.New(engine, stetwork.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	te, err := stet.WithTx(engine, store)
	if err != nil {
		log.Print(err)
		return
	}
	type order struct{ Book string }
	err = stetwork.HandleTx(worker, te, "ship", func(ctx context.Context, tx *sql.Tx, o order) (string, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO shipments VALUES (?)", o.Book)
		return "shipped", err
	})
	if err != nil {
		log.Print(err)
		return
	}
	// The acceptance is in the transaction of the order's own row, too.
	id := engine.ID("customer 7", "8e03978e")
	work, err := stetwork.NewWork("ship", order{Book: "Emma"})
	if err != nil {
		log.Print(err)
		return
	}
	err = te.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := te.Accept(ctx, tx, stet.Op{Scope: "customer 7", Key: "8e03978e"}, work)
		return err
	})
	if err != nil {
		log.Print(err)
		return
	}
	engine.Wake() // where Run runs in this process
	if err := worker.Do(ctx, stet.Item{ID: id, Name: "ship"}); err != nil {
		log.Print(err)
		return
	}
	st, err := engine.Lookup(ctx, id)
	fmt.Printf("%v: %s %v\n", st.Record.State, st.Outcome.Body, err)
	// Output: completed: "shipped" <nil>
}

// All that has effects is in steps, so that the handler may be run again from the
// start: a later attempt continues after the last step that was done.
func ExampleHandleIdempotent() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	worker, err := stetwork.New(engine, stetwork.Options{Backoff: func(int) time.Duration { return 0 }, ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	err = stetwork.HandleIdempotent(worker, "buy", func(ctx context.Context, book string) (string, error) {
		charge, err := stet.StepOnce(ctx, "charge", func(context.Context) (string, error) {
			fmt.Println("charging for", book)
			return "charge 7", nil
		})
		if err != nil {
			return "", err
		}
		if stet.FromContext(ctx).Attempt() == 1 {
			return "", errors.New("the lorry broke down")
		}
		return charge + ", shipped", nil
	})
	if err != nil {
		log.Fatal(err)
	}
	work, err := stetwork.NewWork("buy", "Emma")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	st, err := engine.Accept(ctx, stet.Op{Scope: "customer 7", Key: "8e03978e"}, work)
	if err != nil {
		log.Fatal(err)
	}
	// What Run does, and whatever consumes a queue.
	item := stet.Item{ID: st.Record.ID, Name: "buy"}
	for range 2 {
		if err := worker.Do(ctx, item); err != nil {
			log.Fatal(err)
		}
	}
	st, err = engine.Lookup(ctx, item.ID)
	fmt.Printf("%v: %s, attempt %d, %v\n", st.Record.State, st.Outcome.Body, st.Record.Attempt, err)
	// Output:
	// charging for Emma
	// completed: "charge 7, shipped", attempt 2, <nil>
}

// Beyond one machine a queue carries operations to other processes, which call Do.
func ExampleQueueFunc() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	carried := make(chan stet.Item)
	dispatcher, err := stetwork.NewDispatcher(engine, stetwork.QueueFunc(func(ctx context.Context, items []stet.Item) error {
		for _, it := range items {
			select {
			case carried <- it:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}), stetwork.DispatcherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error)
	go func() { done <- dispatcher.Run(ctx) }()
	work, err := stetwork.NewWork("ship", "Emma")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := engine.Accept(ctx, stet.Op{Scope: "customer 7", Key: "8e03978e"}, work); err != nil {
		log.Fatal(err)
	}
	fmt.Println((<-carried).Name)
	stop()
	fmt.Println(<-done)
	// Output:
	// ship
	// <nil>
}
