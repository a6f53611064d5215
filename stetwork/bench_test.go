package stetwork_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// BenchmarkEmbedded is an operation from its acceptance to its outcome, with a
// handler that does nothing or, on SQLite, inserts a row.
func BenchmarkEmbedded(b *testing.B) {
	b.Run("memory", func(b *testing.B) {
		w, _ := newWorker(b, memory.New(memory.Options{MaxRecords: 1 << 30}))
		orders(b, w, func(done func()) error {
			return stetwork.Handle(w, "ship", func(context.Context, parcel) (receipt, error) { done(); return receipt{}, nil })
		})
	})
	b.Run("sqlite", func(b *testing.B) {
		s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "stet.db"), sqlite.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		if _, err := s.DB().Exec(`CREATE TABLE shipments (book TEXT)`); err != nil {
			b.Fatal(err)
		}
		w, e := newWorker(b, s)
		orders(b, w, func(done func()) error {
			return stetwork.HandleTx(w, stettest.TxEngine(e, s), "ship", func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
				done()
				return receipt{}, insert(ctx, tx, p)
			})
		})
	})
}

func newWorker(b *testing.B, store store.Store) (*stetwork.Worker, *stet.Engine) {
	b.Helper()
	e, err := stet.New(store, stet.Options{SweepEvery: -1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	w, err := stetwork.New(e, stetwork.Options{Concurrency: 64, ErrorLog: quiet(), RecoverEvery: -1})
	if err != nil {
		b.Fatal(err)
	}
	return w, e
}

// orders has b.N operations accepted by 16 callers, and waits until all have run.
func orders(b *testing.B, w *stetwork.Worker, register func(done func()) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	over := make(chan struct{})
	err := register(func() {
		if left.Add(-1) == 0 {
			close(over)
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.Run(ctx) }()
	work, err := stetwork.NewWork("ship", parcel{"Emma"})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if _, err := w.Engine().Accept(b.Context(), stet.Op{Scope: "shop", Key: strconv.FormatInt(i, 10)}, work); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	accepted := time.Since(began)
	<-over
	cancel()
	if err := <-ran; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/accepted.Seconds(), "accepted/s")
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "ended/s")
}
