package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// looked is a store that counts how often work and notes are read.
type looked struct {
	*memory.Store
	n, bytes atomic.Int64
}

func (s *looked) Look(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.Store.Look(ctx, id)
	s.n.Add(1)
	s.bytes.Add(int64(len(rec.Work) + len(rec.Notes.Data)))
	return rec, err
}

// Who waits for a minute would otherwise read a payload of a megabyte every half second.
func TestWaitingForTheEndDoesNotReadTheWorkEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &looked{Store: memory.New(memory.Options{})}
		e := newEngine(t, s, stet.Options{SweepEvery: -1})
		it := accept(t, e, op, stet.Work{Name: "ship", Payload: make([]byte, store.MaxWork)})
		ended := make(chan stet.Status)
		go func() {
			st, _ := e.Await(context.Background(), op.Scope, it.ID)
			ended <- st
		}()
		time.Sleep(time.Minute)
		run := take(t, e, it)
		time.Sleep(time.Minute)
		before := s.n.Load()
		complete(t, run, "x")
		if st := <-ended; st.Record.State != store.Completed || before > 2 || s.n.Load() > before+1 {
			t.Errorf("%v; work and notes were read %d times, %d bytes", st.Record.State, s.n.Load(), s.bytes.Load())
		}
	})
}
