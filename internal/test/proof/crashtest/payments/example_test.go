package payments_test

import (
	"context"
	"fmt"

	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/proof/crashtest/payments"
)

// A service is killed at fault points five times, while customers pay.
func ExampleRun() {
	rep, err := payments.Run(context.Background(), payments.Config{
		Place: crashtest.Place{Kind: crashtest.SQLite},
		Mode:  payments.Tx,
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
