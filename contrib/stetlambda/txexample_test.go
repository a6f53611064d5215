package stetlambda_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/sqlite"
)

// A message that is delivered twice writes one row.
func ExampleSQSTx() {
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
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE orders (body TEXT)"); err != nil {
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
	orders, err := stetlambda.SQSTx(te, stetlambda.SQSOptions{
		Options: stetmsg.Options[events.SQSMessage]{
			Operation: stetmsg.By(stetlambda.Envelope, stetmsg.Header("orders", "order-id")),
		},
		Failures: stetlambda.BatchItemFailures,
	}, func(ctx context.Context, tx *sql.Tx, m events.SQSMessage) ([]byte, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO orders (body) VALUES (?)", m.Body)
		return nil, err
	})
	if err != nil {
		log.Fatal(err)
	}

	id := "7"
	message := events.SQSMessage{MessageId: "1", Body: "two books", EventSource: "aws:sqs",
		MessageAttributes: map[string]events.SQSMessageAttribute{"order-id": {StringValue: &id, DataType: "String"}}}
	for range 2 {
		if _, err := orders(ctx, events.SQSEvent{Records: []events.SQSMessage{message}}); err != nil {
			log.Fatal(err)
		}
	}
	var rows int
	err = store.DB().QueryRowContext(ctx, "SELECT count(*) FROM orders").Scan(&rows)
	fmt.Println("orders:", rows, err)
	// Output: orders: 1 <nil>
}
