package stetwork_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store/memory"
)

// Two services share a store: what one has no handler for it leaves to the other.
func TestWorkerTakesOnlyItsNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		ours := newBench(t, store, stetwork.Options{}, stet.Policy{})
		theirs := newBench(t, store, stetwork.Options{}, stet.Policy{})
		ran := make(chan string, 100)
		for b, name := range map[*bench]string{ours: "ship", theirs: "bill"} {
			if err := stetwork.Handle(b.worker, name, func(context.Context, parcel) (receipt, error) { ran <- name; return receipt{}, nil }); err != nil {
				t.Fatal(err)
			}
		}
		defer ours.runs()()
		synctest.Wait()
		for i := range 50 { // while only one of them runs
			_, err := ours.engine.Accept(t.Context(), stet.Op{Scope: "shop", Key: fmt.Sprint(i)}, stet.Work{Name: "bill", Payload: []byte("{}")})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		began := time.Now()
		defer theirs.runs()()
		for range 50 {
			if name := <-ran; name != "bill" {
				t.Fatalf("%s ran", name)
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v until all had run", took)
		}
	})
}
