package ordeal_test

import (
	"context"
	"fmt"

	"github.com/stet-go/stet/internal/ordeal"
)

// A service is killed at fault points five times, while customers pay.
func ExampleRun() {
	rep, err := ordeal.Run(context.Background(), ordeal.Config{
		Place: ordeal.Place{Kind: ordeal.SQLite},
		Mode:  ordeal.Tx,
		Kills: 5,
		Seed:  1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rep.Kills, "kills,", len(rep.Violations), "violations")
	// Output: 5 kills, 0 violations
}

// The judge needs nothing but histories and the ledger.
func ExampleJudge() {
	ledger := []ordeal.Entry{{Charge: ordeal.Charge{ID: "c1", Scope: "shop", Key: "k", Amount: 5}}}
	for _, v := range ordeal.Judge(nil, ledger, false).Violations {
		fmt.Println(v.Promise)
	}
	// Output: scope
}
