package mysql

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// BenchmarkPairs is claim and settle of 1 KB by 256 callers.
func BenchmarkPairs(b *testing.B) {
	s := openStore(b, Options{})
	var n atomic.Int64
	out := store.Settlement{State: store.Completed, Result: store.Result{Body: bytes.Repeat([]byte("r"), 1024)}}
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req := request(fmt.Sprint(n.Add(1)))
			req.Lease = 30 * time.Second
			rec, err := s.Claim(context.Background(), req)
			if err == nil {
				err = s.Settle(context.Background(), rec.Claim(), out, keep)
			}
			if err != nil {
				b.Error(err)
			}
		}
	})
}
