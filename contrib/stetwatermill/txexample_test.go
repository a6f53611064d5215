package stetwatermill_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetwatermill"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/sqlite"
)

// A message that is delivered twice writes one row.
func ExampleHandleTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stet")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"), sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE bills (order_id TEXT)"); err != nil {
		log.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, store)
	if err != nil {
		log.Fatal(err)
	}
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	publisher, subscriber := pubsub, pubsub
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	options := stetwatermill.Options{Options: stetmsg.Options[*message.Message]{Operation: stetwatermill.UUID}, DeadLetter: stetwatermill.PoisonQueue(pubsub, "orders.poison")}
	bill, err := stetwatermill.HandleTx(te, options, func(m *message.Message, tx *sql.Tx) ([]*message.Message, error) {
		if _, err := tx.ExecContext(m.Context(), "INSERT INTO bills VALUES (?)", m.UUID); err != nil {
			return nil, err
		}
		return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(m.UUID))}, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	router.AddHandler("billing", "orders", subscriber, "invoices", publisher, bill)

	go func() {
		if err := router.Run(ctx); err != nil {
			log.Fatal(err)
		}
	}()
	<-router.Running()
	id := watermill.NewUUID()
	invoices, err := pubsub.Subscribe(ctx, "invoices")
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if err := pubsub.Publish("orders", message.NewMessage(id, []byte("order 7"))); err != nil {
			log.Fatal(err)
		}
		m := <-invoices
		m.Ack()
	}
	if err := router.Close(); err != nil {
		log.Fatal(err)
	}
	var rows int
	err = store.DB().QueryRowContext(ctx, "SELECT count(*) FROM bills").Scan(&rows)
	fmt.Println("bills:", rows, err)
	// Output: bills: 1 <nil>
}
