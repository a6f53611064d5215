package cache_test

import (
	"context"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	store, err := cache.New(memory.New(memory.Options{}), cache.Options{MaxBytes: 16 << 20})
	if err != nil {
		panic(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	for range 3 { // from the second replay on, the store is not asked
		res, err := stet.Do(context.Background(), engine, stet.Op{Scope: "account 1", Key: "order 7"},
			func(context.Context) (string, error) { return "charged", nil })
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// charged false <nil>
	// charged true <nil>
	// charged true <nil>
}
