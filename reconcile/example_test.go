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

// A process died after it had asked the processor to charge a card. The reconciler asks
// the processor whether it has, by the reference of the operation.
func Example() {
	ctx := context.Background()
	charges := map[string]string{"order 1042": "charge 7"} // the processor's books
	verify := func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		if st.Op.Ref == "" { // without a reference the verifier cannot search
			return stet.CannotKnow(), nil
		}
		charge, ok := charges[st.Op.Ref]
		if !ok {
			return stet.ItDidNotHappen(), nil
		}
		result, err := json.Marshal(charge)
		return stet.ItHappened(stet.Outcome{Body: result}), err
	}
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Verify: verify}})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	run, err := engine.Begin(ctx, stet.Op{Scope: "customer 7", Key: "8e03978e", Name: "POST /payments", Ref: "order 1042"})
	if err != nil {
		log.Fatal(err)
	}
	if err := run.MarkUnknown(ctx); err != nil { // as if it had died
		log.Fatal(err)
	}

	r, err := reconcile.New(engine, reconcile.Options{ByRef: true})
	if err != nil {
		log.Fatal(err)
	}
	report, err := r.Pass(ctx)
	fmt.Printf("%+v %v\n", report, err)
	st, err := engine.Lookup(ctx, run.ID())
	fmt.Printf("%v: %s %v\n", st.Record.State, st.Outcome.Body, err)
	// Output:
	// {Looked:1 Completed:1 Failed:0 Again:0 Left:0 Blind:0 Changed:0 Errors:0} <nil>
	// completed: "charge 7" <nil>
}
