package stetmetrics_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe/stetmetrics"
	"github.com/stet-go/stet/store/memory"
)

func ExampleNew() {
	registry := prometheus.NewRegistry()
	metrics, err := stetmetrics.New(registry)
	if err != nil {
		panic(err)
	}
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Observer: metrics})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	op := stet.Op{Scope: "acct_1", Key: "order-7"}
	for range 3 {
		_, _ = stet.Do(context.Background(), engine, op, func(context.Context) (string, error) { return "charged", nil })
	}
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, series := range families[2].GetMetric() { // after stet_build_info and stet_claim_seconds
		fmt.Println(families[2].GetName(), series.GetLabel()[1].GetValue(), series.GetCounter().GetValue())
	}
	// Output:
	// stet_events_total claimed 1
	// stet_events_total replayed 2
	// stet_events_total settled 1
}
