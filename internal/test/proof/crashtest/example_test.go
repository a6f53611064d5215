package crashtest_test

import (
	"fmt"

	"github.com/stet-go/stet/internal/test/proof/crashtest"
)

// The judge needs nothing but histories and the ledger.
func ExampleJudge() {
	ledger := []crashtest.Effect{{Charge: crashtest.Charge{ID: "c1", Scope: "shop", Key: "k", Amount: 5}}}
	for _, v := range crashtest.Judge(crashtest.Trial{Effects: ledger}, crashtest.PaymentLaw(false)).Violations {
		fmt.Println(v.Promise)
	}
	// Output: scope
}
