package reconcile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store/memory"
)

// The worker died after it had asked the processor to charge a card. The
// reconciler asks the processor whether it has.
func Example() {
	ctx := context.Background()
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	st, err := engine.Accept(ctx, stet.Op{Scope: "customer 7", Key: "8e03978e"}, stet.Work{Name: "charge"})
	if err != nil {
		log.Fatal(err)
	}
	run, err := engine.Take(ctx, stet.Item{ID: st.Record.ID, Name: "charge"})
	if err != nil {
		log.Fatal(err)
	}
	if err := run.Park(ctx); err != nil {
		log.Fatal(err)
	}

	charges := map[string]string{"8e03978e": "charge 7"} // the processor's books
	r, err := reconcile.New(engine, reconcile.Options{Verify: func(_ context.Context, st stet.Status) (stet.Verdict, error) {
		charge, ok := charges[st.Op.Key]
		if !ok {
			return stet.ItDidNotHappen(), nil
		}
		result, err := json.Marshal(charge)
		return stet.ItHappened(stet.Outcome{Body: result}), err
	}})
	if err != nil {
		log.Fatal(err)
	}
	report, err := r.Pass(ctx)
	fmt.Printf("%+v %v\n", report, err)
	st, err = engine.Lookup(ctx, st.Record.ID)
	fmt.Printf("%v: %s %v\n", st.Record.State, st.Outcome.Body, err)
	// Output:
	// {Looked:1 Completed:1 Failed:0 Again:0 Left:0 Changed:0 Errors:0} <nil>
	// completed: "charge 7" <nil>
}
