package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// open opens a store in a folder that done removes.
func open() (s *sqlite.Store, done func()) {
	dir, err := os.MkdirTemp("", "stet")
	if err != nil {
		panic(err)
	}
	s, err = sqlite.Open(context.Background(), filepath.Join(dir, "stet.db"), sqlite.Options{})
	if err != nil {
		panic(err)
	}
	return s, func() {
		_ = s.Close()
		_ = os.RemoveAll(dir)
	}
}

func Example() {
	s, done := open() // sqlite.Open(ctx, "/var/lib/payments/stet.db", sqlite.Options{})
	defer done()
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	op := stet.Op{Scope: "acct_1", Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"}
	for range 2 {
		res, err := stet.Do(context.Background(), engine, op, func(context.Context) (string, error) {
			fmt.Println("charging")
			return "ch_1", nil
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// charging
	// ch_1 false <nil>
	// ch_1 true <nil>
}

// The payment and the record of it are one commit.
func ExampleStore_RunTx() {
	ctx := context.Background()
	s, done := open()
	defer done()
	if _, err := s.DB().ExecContext(ctx, "CREATE TABLE payments (id TEXT, amount INTEGER)"); err != nil {
		panic(err)
	}
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, s)
	if err != nil {
		panic(err)
	}

	pay := func(ctx context.Context, tx *sql.Tx) (string, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES ('pay_1', 100)")
		return "pay_1", err
	}
	op := stet.Op{Scope: "acct_1", Key: "k1"}
	for range 2 {
		res, err := stet.DoTx(ctx, te, op, pay)
		fmt.Println(res.Value, res.Replayed, err)
	}
	var n int
	if err := s.DB().QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&n); err != nil {
		panic(err)
	}
	fmt.Println("payments:", n)
	// Output:
	// pay_1 false <nil>
	// pay_1 true <nil>
	// payments: 1
}

// A worker that claimed before settles in the transaction that holds its
// writes.
func ExampleStore_SettleTx() {
	ctx := context.Background()
	s, done := open()
	defer done()
	rec, err := s.Claim(ctx, store.ClaimRequest{
		ID: store.Digest("", "acct_1", "k1"), Scope: store.DigestScope("", "acct_1"),
		Owner: store.NewOwner(), Lease: store.MinLease,
	})
	if err != nil {
		panic(err)
	}
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer tx.Rollback()
	keep := store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}
	// … the business writes, through tx …
	out := store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("done")}}
	if err := s.SettleTx(ctx, tx, rec.Claim(), out, keep); err != nil {
		panic(err)
	}
	fmt.Println(tx.Commit())
	// Output: <nil>
}

// The file is the queue, too: the order and the work that it means are one commit,
// and so are what the worker writes and the outcome.
func ExampleStore_AcceptTx() {
	ctx := context.Background()
	s, done := open()
	defer done()
	if _, err := s.DB().ExecContext(ctx, "CREATE TABLE orders (id INTEGER, shipped INTEGER)"); err != nil {
		panic(err)
	}
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, s)
	if err != nil {
		panic(err)
	}

	err = s.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (1001, 0)"); err != nil {
			return err
		}
		op := stet.Op{Scope: "acct_1", Key: "order-1001"}
		st, err := te.Accept(ctx, tx, op, stet.Work{Name: "ship", Payload: []byte("1001")})
		fmt.Println("new:", st.New)
		return err
	})
	if err != nil {
		panic(err)
	}

	items, err := engine.Due(ctx, 10, time.Minute)
	if err != nil {
		panic(err)
	}
	for _, item := range items {
		run, err := engine.Take(ctx, item)
		if err != nil {
			panic(err)
		}
		err = te.Finish(ctx, run, func(ctx context.Context, tx *sql.Tx) (stet.Outcome, error) {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET shipped = 1 WHERE id = ?", string(run.Work.Payload))
			return stet.Outcome{Body: []byte(`"shipped"`)}, err
		})
		fmt.Println(item.Name, string(run.Work.Payload), err)
	}
	// Output:
	// new: true
	// ship 1001 <nil>
}
