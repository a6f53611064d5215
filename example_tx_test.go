package stet_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// ledger returns an engine over a database with a table of payments.
func ledger() (te *stet.TxEngine[*sql.Tx], end func()) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "ledger")
	if err != nil {
		panic(err)
	}
	s, err := sqlite.Open(ctx, filepath.Join(dir, "ledger.db"), sqlite.Options{})
	if err != nil {
		panic(err)
	}
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		panic(err)
	}
	te, err = stet.WithTx(engine, s)
	if err != nil {
		panic(err)
	}
	err = te.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE payments (euros INTEGER)`)
		return err
	})
	if err != nil {
		panic(err)
	}
	return te, func() { _ = engine.Close(); _ = s.Close(); _ = os.RemoveAll(dir) }
}

func pay(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES (100)`)
	return err
}

// The payment and its outcome are one commit.
func ExampleDoTx() {
	te, end := ledger()
	defer end()
	op := stet.Op{Scope: "acct_1", Key: "order-7", Fingerprint: stet.NewFingerprint([]byte("100 EUR"))}
	for range 2 {
		res, err := stet.DoTx(context.Background(), te, op, func(ctx context.Context, tx *sql.Tx) (string, error) {
			return "receipt 1", pay(ctx, tx)
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// receipt 1 false <nil>
	// receipt 1 true <nil>
}

// A step whose effect is a write: the write and the step's result are one commit.
func ExampleStepTx() {
	te, end := ledger()
	defer end()
	ctx := context.Background()
	for range 2 {
		run, err := te.Engine().Begin(ctx, stet.Op{Scope: "acct_1", Key: "order-10"})
		if err != nil {
			panic(err)
		}
		receipt, err := stet.StepTx(run.Context(), te, "pay", func(ctx context.Context, tx *sql.Tx) (string, error) {
			fmt.Println("writing")
			return "receipt 3", pay(ctx, tx)
		})
		fmt.Println("attempt", run.Attempt(), receipt, err)
		_ = run.Release(ctx, stet.Again{}) // nothing else has happened
	}
	// Output:
	// writing
	// attempt 1 receipt 3 <nil>
	// attempt 2 receipt 3 <nil>
}

func ExampleTxEngine_Run() {
	te, end := ledger()
	defer end()
	run, err := te.Run(context.Background(), stet.Op{Scope: "acct_1", Key: "order-8"}, func(ctx context.Context, tx *sql.Tx) (stet.Outcome, error) {
		return stet.Outcome{Status: 201, Type: "text/plain", Body: []byte("receipt 2")}, pay(ctx, tx)
	})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", run.Outcome().Body)
	// Output: receipt 2
}

// An operation that is accepted in a transaction is accepted if it commits.
func ExampleTxEngine_Accept() {
	te, end := ledger()
	defer end()
	var accepted stet.Status
	err := te.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
		if err := pay(ctx, tx); err != nil {
			return err
		}
		accepted, err = te.Accept(ctx, tx, stet.Op{Scope: "acct_1", Key: "order-9"}, stet.Work{Name: "ship"})
		return err
	})
	if err != nil {
		panic(err)
	}
	te.Engine().Wake()
	fmt.Println(accepted.Record.State == store.Accepted, accepted.New)
	// Output: true true
}
