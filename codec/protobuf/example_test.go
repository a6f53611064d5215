package protobuf_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/codec/protobuf"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Values: protobuf.Values()}})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	for range 2 {
		res, err := stet.Do(context.Background(), engine, stet.Op{Scope: "acct_1", Key: "k"}, func(context.Context) (*durationpb.Duration, error) {
			fmt.Println("it runs")
			return durationpb.New(3 * time.Second), nil
		})
		fmt.Println(res.Value.AsDuration(), err)
	}
	// Output:
	// it runs
	// 3s <nil>
	// 3s <nil>
}
