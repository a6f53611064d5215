package stetwork_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// slowTake is a store whose Take answers once the gate is closed.
type slowTake struct {
	*memory.Store
	gate chan struct{}
}

func (s slowTake) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	rec, err := s.Store.Take(ctx, req)
	<-s.gate
	return rec, err
}

// A run that is being taken when Shutdown ends the contexts must not begin with a context that
// does not end.
func TestShutdownReleasesARunThatIsBeingTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := slowTake{memory.New(memory.Options{}), make(chan struct{})}
		b := newBench(t, st, stetwork.Options{}, stet.Policy{})
		var ran atomic.Int32
		must(t, stetwork.Handle(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
			ran.Add(1)
			<-ctx.Done()
			return receipt{}, context.Cause(ctx)
		}))
		id := b.accept("ship", "a")
		did := make(chan error)
		go func() { did <- b.worker.Do(context.Background(), stet.Item{ID: id, Name: "ship"}) }()
		synctest.Wait() // it is being taken
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		down := make(chan error)
		go func() { down <- b.worker.Shutdown(ctx) }()
		time.Sleep(2 * time.Second)
		close(st.gate)
		must(t, <-did)
		must(t, <-down)
		if st := b.status(id); st.Record.State != store.Accepted || ran.Load() != 0 {
			t.Errorf("%v after %d runs; want it accepted, for another worker", st.Record.State, ran.Load())
		}
	})
}
