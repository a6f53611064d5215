package memory_test

import (
	"context"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	op := stet.Op{Scope: "acct_1", Key: "order-1001"}
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
