package stet_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	op := stet.Op{Scope: "acct_1", Key: "order-7", Fingerprint: stet.NewFingerprint([]byte("100 EUR"))}
	for range 2 {
		res, err := stet.Do(context.Background(), engine, op, func(context.Context) (string, error) {
			fmt.Println("charging the card")
			return "receipt 1", nil
		})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// charging the card
	// receipt 1 false <nil>
	// receipt 1 true <nil>
}

func ExampleDo_nothingHappened() {
	engine, _ := stet.New(memory.New(memory.Options{}), stet.Options{})
	defer engine.Close()
	op := stet.Op{Scope: "acct_1", Key: "order-8"}
	pay := func(ctx context.Context) (string, error) {
		run := stet.FromContext(ctx)
		if run.Attempt() == 1 {
			run.Declare(stet.NotExecuted, 0) // the processor refused the connection
			return "", errors.New("processor is down")
		}
		return "receipt 2", nil
	}

	_, err := stet.Do(context.Background(), engine, op, pay)
	fmt.Println(err)
	res, err := stet.Do(context.Background(), engine, op, pay)
	fmt.Println(res.Value, res.Attempt, err)
	// Output:
	// stet: ended without effect (not executed): processor is down
	// receipt 2 2 <nil>
}

func ExampleEngine_Begin() {
	engine, _ := stet.New(memory.New(memory.Options{}), stet.Options{})
	defer engine.Close()
	ctx := context.Background()

	run, err := engine.Begin(ctx, stet.Op{Scope: "acct_1", Key: "order-9"})
	if err != nil {
		fmt.Println(err, stet.ExecutionOf(err))
		return
	}
	if run.Replayed() {
		fmt.Printf("%s\n", run.Outcome().Body)
		return
	}
	// The effect goes here, under run.Context().
	err = run.Settle(ctx, stet.Outcome{Body: []byte("receipt 3")})
	fmt.Println(run.Attempt(), err)
	// Output: 1 <nil>
}

func ExampleExecutionOf() {
	engine, _ := stet.New(memory.New(memory.Options{}), stet.Options{})
	defer engine.Close()
	ctx := context.Background()

	op := stet.Op{Scope: "acct_1", Key: "order-10", Fingerprint: stet.NewFingerprint([]byte("100 EUR"))}
	_, _ = stet.Do(ctx, engine, op, func(context.Context) (int, error) { return 1, nil })

	op.Fingerprint = stet.NewFingerprint([]byte("999 EUR"))
	_, err := stet.Do(ctx, engine, op, func(context.Context) (int, error) { return 2, nil })
	fmt.Println(err)
	fmt.Println(stet.KindOf(err) == stet.KindMismatch, stet.ExecutionOf(err))
	// Output:
	// stet: key reused for another request (not executed)
	// true not executed
}

func ExampleOptions_classes() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{
		Policy: stet.Policy{Lease: 10 * time.Second},
		Classes: map[string]stet.Policy{
			"payment": {Retention: store.Retention{Result: 72 * time.Hour, Tombstone: 365 * 24 * time.Hour}},
			"code":    {Retention: store.Retention{Result: 5 * time.Minute, Tombstone: time.Hour}},
		},
	})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	p, _ := engine.Policy("code")
	fmt.Println(p.Lease, p.Retention.Result)
	// Output: 10s 5m0s
}

func ExampleDeriveKey() {
	// The same order always gives the same key, on every host.
	fmt.Println(stet.DeriveKey("refund", "order 7", "EUR 100.00"))
	// Output: aaa44d62-2d7b-8c32-92be-64777dbb1685
}

// An operator lists unknown operations, finds the charge in the processor's books, and
// resolves the operation. Every retry returns that outcome.
func ExampleEngine_Resolve() {
	ctx := context.Background()
	st := memory.New(memory.Options{})
	engine, err := stet.New(st, stet.Options{Policy: stet.Policy{Lease: store.MinLease}})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	op := stet.Op{Scope: "acct_1", Key: "order-7"}
	_, _ = st.Claim(ctx, store.ClaimRequest{ID: engine.ID(op.Scope, op.Key), Owner: store.NewOwner(), Lease: time.Nanosecond}) // and dies

	page, err := st.Browse(ctx, store.Query{States: []store.State{store.Running, store.Unknown}})
	if err != nil {
		panic(err)
	}
	for _, rec := range page.Records {
		err := engine.Resolve(ctx, rec, "", stet.ItHappened(stet.Outcome{Body: []byte(`"charged 10.00"`)}))
		if err != nil {
			panic(err)
		}
	}
	res, err := stet.Do(ctx, engine, op, func(context.Context) (string, error) { return "charged again", nil })
	fmt.Println(res.Value, res.Replayed, err)
	// Output: charged 10.00 true <nil>
}
