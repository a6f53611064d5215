// Command adapters books orders that are posted to /orders, that come from RabbitMQ, or both.
// Each is booked once.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost/"), "orders", "shop.db", func(h http.Handler) {
		go func() { log.Fatal(http.ListenAndServe("127.0.0.1:8080", h)) }()
	})
	if err != nil {
		log.Fatal(err)
	}
}

// book writes an order down. Both adapters call it, with its JSON.
func book(ctx context.Context, tx *sql.Tx, order []byte) (receipt []byte, err error) {
	var n int
	err = tx.QueryRowContext(ctx, "INSERT INTO orders (body) VALUES (?) RETURNING rowid", string(order)).Scan(&n)
	return fmt.Appendf(nil, `{"booking":%d}`, n), err
}

func run(ctx context.Context, broker, queue, file string, serve func(http.Handler)) error {
	db, err := sqlite.Open(ctx, file, sqlite.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.DB().ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (body TEXT)"); err != nil {
		return err
	}
	engine, err := stet.New(db, stet.Options{})
	if err != nil {
		return err
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, db)
	if err != nil {
		return err
	}

	// What makes two orders the same: scope, key, and this fingerprint of the JSON.
	const scope, keyHeader = "orders", "Idempotency-Key"
	fingerprint, err := canonical.Fingerprint("order")
	if err != nil {
		return err
	}

	idem, err := stethttp.NewTx(te, stethttp.Options{
		Scope:       func(*http.Request) (string, error) { return scope, nil },
		Fingerprint: func(_ *http.Request, body []byte) (store.Fingerprint, error) { return fingerprint(body), nil },
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idem.Handler(http.HandlerFunc(posted)))
	serve(mux)

	consumer, err := stetmsg.NewTx(te, stetmsg.Options[amqp091.Delivery]{
		Operation: stetmsg.By(amqp.Envelope, stetmsg.Header(scope, keyHeader).WithFingerprint(
			func(e stetmsg.Envelope) (store.Fingerprint, error) { return fingerprint(e.Body), nil })),
		Observe: func(_ context.Context, d stetmsg.Decision) { log.Print("message: ", d.Action, ", ", d.Reason) },
	}, func(ctx context.Context, tx *sql.Tx, m amqp091.Delivery) ([]byte, error) {
		return book(ctx, tx, m.Body)
	})
	if err != nil {
		return err
	}
	receiver, err := amqp.New(consumer, amqp.Options{URL: broker, Queue: queue})
	if err != nil {
		return err
	}
	return receiver.Run(ctx)
}

func posted(w http.ResponseWriter, r *http.Request) {
	order, err := io.ReadAll(r.Body)
	var receipt []byte
	if err == nil {
		receipt, err = book(r.Context(), stethttp.Tx[*sql.Tx](r.Context()), order)
	}
	if err != nil {
		http.Error(w, "not booked", http.StatusInternalServerError) // it is rolled back
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(receipt)
}
