package mysql_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/mysql"
)

// The payment and its outcome are one commit.
func Example() {
	ctx := context.Background()
	const dsn = "payments:password@tcp(localhost:3306)/shop"
	if err := mysql.Migrate(ctx, dsn); err != nil {
		log.Fatal(err)
	}
	s, err := mysql.Open(ctx, dsn, mysql.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, s)
	if err != nil {
		log.Fatal(err)
	}
	op := stet.Op{Scope: "account-7", Key: "order-1001", Fingerprint: stet.NewFingerprint([]byte("charge 10 EUR"))}
	res, err := stet.DoTx(ctx, te, op, func(ctx context.Context, tx *sql.Tx) (int64, error) {
		res, err := tx.ExecContext(ctx, "INSERT INTO payments (cents) VALUES (1000)")
		if err != nil {
			return 0, err
		}
		return res.LastInsertId()
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("payment %d, replayed: %v", res.Value, res.Replayed)
}

// Transactions of a pool that the service has already.
func ExampleOverSQL() {
	ctx := context.Background()
	const dsn = "payments:password@tcp(localhost:3306)/shop"
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	s, err := mysql.Open(ctx, dsn, mysql.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	begin := func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) }
	if _, err := stet.WithTx(engine, mysql.OverSQL(s, begin)); err != nil {
		log.Fatal(err)
	}
}
