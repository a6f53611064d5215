package engine_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

func BenchmarkDo(b *testing.B) {
	for name, fresh := range map[string]bool{"first": true, "replay": false} {
		b.Run(name, func(b *testing.B) {
			e, err := stet.New(memory.New(memory.Options{MaxRecords: 100_000_000}), stet.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				op := stet.Op{Scope: "s", Key: "k"}
				if fresh {
					n++
					op.Key = strconv.Itoa(n)
				}
				if _, err := stet.Do(b.Context(), e, op, func(context.Context) (int, error) { return 1, nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
