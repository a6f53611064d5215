package stetwork_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

const deploys = 30 // more than stetwork.DefaultMaxAttempts

// interrupted is a handler whose run is interrupted by each deploy but the last.
func interrupted(ctx context.Context, last bool, err func(error) error) (receipt, error) {
	if last {
		return receipt{stet.FromContext(ctx).Attempt()}, nil
	}
	<-ctx.Done()
	return receipt{}, err(context.Cause(ctx))
}

func TestShutdownsUseNoAttempts(t *testing.T) {
	retryable := func(err error) error { return stet.Retryable(err) }
	for name, c := range map[string]struct {
		register func(*stetwork.Worker, string, func(context.Context, parcel) (receipt, error)) error
		err      func(error) error
	}{
		"plain":      {stetwork.Handle[parcel, receipt], retryable},
		"idempotent": {stetwork.HandleIdempotent[parcel, receipt], func(err error) error { return err }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(memory.Options{})
				var id store.ID
				for n := range deploys {
					b := newBench(t, st, stetwork.Options{Drain: time.Second}, stet.Policy{})
					must(t, c.register(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
						return interrupted(ctx, n == deploys-1, c.err)
					}))
					id = b.accept("ship", "Emma")
					stop := b.runs()
					synctest.Wait()
					if n < deploys-1 {
						stop()
					}
				}
				b := newBench(t, st, stetwork.Options{}, stet.Policy{})
				if st := b.status(id); st.Record.State != store.Completed || string(st.Outcome.Body) != fmt.Sprintf(`{"Number":%d}`, deploys) {
					t.Errorf("%v with %s, attempt %d", st.Record.State, st.Outcome.Body, st.Record.Attempt)
				}
			})
		})
	}
}

func TestShutdownsUseNoAttemptsOfTransactions(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{}, stet.Policy{})
	id := b.accept("ship", "Emma")
	for n := range deploys {
		w, err := stetwork.New(b.engine, stetwork.Options{ErrorLog: quiet()})
		must(t, err)
		begun := make(chan struct{})
		must(t, stetwork.HandleTx(w, stettest.TxEngine(b.engine, s), "ship", func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
			close(begun)
			if err := insert(ctx, tx, p); err != nil {
				return receipt{}, err
			}
			return interrupted(ctx, n == deploys-1, func(err error) error { return err })
		}))
		did := make(chan error)
		go func() { did <- w.Do(context.Background(), stet.Item{ID: id, Name: "ship"}) }()
		select {
		case <-begun:
		case <-did:
			t.Fatalf("deploy %d: it did not run: %v", n+1, b.status(id).Record.State)
		}
		if n < deploys-1 {
			must(t, w.Shutdown(ended(t)))
		}
		must(t, <-did)
	}
	b.await(id, store.Completed)
	if n := shipments(t, s); n != 1 {
		t.Errorf("%d shipments", n)
	}
}

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestClosedEnginesUseNoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		for n := range deploys {
			b := newBench(t, st, stetwork.Options{}, stet.Policy{})
			must(t, stetwork.HandleIdempotent(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
				return interrupted(ctx, n == deploys-1, func(err error) error { return err })
			}))
			id := b.accept("ship", "Emma")
			go func() { _ = b.worker.Do(context.Background(), stet.Item{ID: id, Name: "ship"}) }()
			synctest.Wait()
			must(t, b.engine.Close())
			synctest.Wait()
			if st := b.status(id); n == deploys-1 && st.Record.State != store.Completed || n < deploys-1 && st.Record.State != store.Accepted {
				t.Fatalf("after %d: %v with %s", n+1, st.Record.State, st.Outcome.Body)
			}
		}
	})
}

// An attempt that ends by itself counts, also after interrupted ones.
func TestAttemptsCountAfterInterruptions(t *testing.T) {
	inMemory(t, stetwork.Options{MaxAttempts: 3, Backoff: func(n int) time.Duration { return time.Duration(n) * time.Hour }}, stet.Policy{}, func(t *testing.T, b *bench) {
		id := b.accept("ship", "Emma")
		for range 5 {
			run, err := b.engine.Take(t.Context(), stet.Item{ID: id, Name: "ship"})
			must(t, err)
			must(t, run.Release(t.Context(), stet.Again{Uncounted: true}))
		}
		ran := 0
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			ran++
			return receipt{}, errors.New("no lorry")
		}))
		began := time.Now()
		b.runs()
		b.failed(id, "no lorry")
		if took := time.Since(began).Round(time.Hour); ran != 3 || took != 3*time.Hour {
			t.Errorf("%d runs in %v", ran, took)
		}
	})
}
