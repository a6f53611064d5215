package stetmsg_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// A message that comes again is acknowledged without being handled again.
func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	consumer, err := stetmsg.New(engine, stetmsg.Options[order]{Operation: func(m order) (stet.Op, error) {
		return stet.Op{Scope: "orders", Key: m.ID, Fingerprint: stet.NewFingerprint([]byte(m.Body))}, nil
	}}, func(_ context.Context, m order) ([]byte, error) {
		fmt.Println("shipping", m.Body)
		return []byte("shipped"), nil
	})
	if err != nil {
		log.Fatal(err)
	}
	for deliveries := range 3 {
		d := consumer.Decide(context.Background(), order{ID: "1001", Body: "five books"}, deliveries+1)
		fmt.Printf("%v: %v, %s\n", d.Action, d.Reason, d.Outcome.Body)
	}
	// Output:
	// shipping five books
	// ack: handled, shipped
	// ack: replayed, shipped
	// ack: replayed, shipped
}

// The business writes and the outcome are one commit.
func ExampleNewTx() {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, ":memory:", sqlite.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close()
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, store)
	if err != nil {
		panic(err)
	}
	consumer, err := stetmsg.NewTx(te, stetmsg.Options[order]{Operation: operation}, func(ctx context.Context, tx *sql.Tx, m order) ([]byte, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?, ?)", m.ID, m.Body)
		return nil, err
	})
	if err != nil {
		log.Print(err)
		return
	}
	_ = consumer // give it to the receiver of a broker's package
}

// An error that no repetition will cure is an outcome.
func ExamplePermanent() {
	handle := func(_ context.Context, m order) ([]byte, error) {
		if m.Body == "" {
			return nil, stet.Permanent(errors.New("an order for nothing"))
		}
		return nil, nil
	}
	_, err := handle(context.Background(), order{ID: "1001"})
	fmt.Println(err)
	// Output: an order for nothing
}
