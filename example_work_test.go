package stet_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

// An API accepts an order in a moment; a worker ships it later.
func ExampleEngine_Accept() {
	ctx := context.Background()
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	op := stet.Op{Scope: "acct_1", Key: "order-7", Fingerprint: stet.NewFingerprint([]byte("one teapot"))}
	for range 2 { // the client tries again
		st, err := engine.Accept(ctx, op, stet.Work{Name: "ship", Payload: []byte("one teapot")})
		fmt.Println(st.Record.State, st.New, err)
	}

	items, err := engine.Due(ctx, 10, time.Minute) // a worker asks from time to time
	if err != nil {
		panic(err)
	}
	for _, item := range items {
		run, err := engine.Take(ctx, item)
		if err != nil || run.Replayed() {
			continue
		}
		result := fmt.Appendf(nil, "shipped %s", run.Work.Payload)
		if err := run.Settle(ctx, stet.Outcome{Body: result}); err != nil {
			panic(err)
		}
	}

	st, err := engine.Status(ctx, op.Scope, engine.ID(op.Scope, op.Key))
	fmt.Printf("%v: %s %v\n", st.Record.State, st.Outcome.Body, err)
	// Output:
	// accepted true <nil>
	// accepted false <nil>
	// completed: shipped one teapot <nil>
}

// The first attempt reserves, charges the card and then fails; the second continues from
// there.
func ExampleStepOnce() {
	ctx := context.Background()
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	st, err := engine.Accept(ctx, stet.Op{Scope: "acct_1", Key: "order-8"}, stet.Work{Name: "order"})
	if err != nil {
		panic(err)
	}

	for range 2 {
		run, err := engine.Take(ctx, stet.Item{ID: st.Record.ID, Name: "order"})
		if err != nil {
			panic(err)
		}
		// Reserving under this name twice has one effect; charging twice has two.
		if _, err := stet.Step(run.Context(), "reserve", func(context.Context) (bool, error) {
			fmt.Println("reserving for order-8")
			return true, nil
		}); err != nil {
			panic(err)
		}
		receipt, err := stet.StepOnce(run.Context(), "charge", func(context.Context) (string, error) {
			fmt.Println("charging the card")
			return "receipt 1", nil
		})
		fmt.Println("attempt", run.Attempt(), receipt, err)
		if run.Attempt() == 1 {
			_ = run.Release(ctx, stet.Again{}) // the warehouse does not answer; nothing was shipped
			continue
		}
		_ = run.Settle(ctx, stet.Outcome{Body: []byte(receipt)})
	}
	// Output:
	// reserving for order-8
	// charging the card
	// attempt 1 receipt 1 <nil>
	// attempt 2 receipt 1 <nil>
}

// Messages of an operation are stored with its outcome, and sent afterwards by a relay.
func ExampleEngine_Relay() {
	ctx := context.Background()
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	op := stet.Op{Scope: "acct_1", Key: "order-9"}
	for range 2 { // the second is a replay
		_, err := stet.Do(ctx, engine, op, func(ctx context.Context) (string, error) {
			return "receipt 1", stet.FromContext(ctx).Emit(stet.Message{To: "order.paid", Body: []byte("order 9")})
		})
		if err != nil {
			panic(err)
		}
	}

	n, err := engine.Relay(ctx, 10, time.Minute, func(operations [][]stet.Message, told func(int, error)) error {
		for i, messages := range operations {
			for _, m := range messages {
				fmt.Printf("publishing to %s: %s\n", m.To, m.Body)
			}
			told(i, nil) // once the broker has confirmed all of them
		}
		return nil
	})
	fmt.Println("operations:", n, err)
	// Output:
	// publishing to order.paid: order 9
	// operations: 1 <nil>
}
