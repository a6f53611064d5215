package engine_test

import (
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// The run of a cancelled job was released without an effect, and no other run has begun.
func TestCancelAfterARelease_FailsTheJob(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	st, err := e.Accept(t.Context(), op, stet.Work{Name: "ship"})
	if err != nil {
		t.Fatal(err)
	}
	run, err := e.Take(t.Context(), stet.Item{ID: st.Record.ID, Name: "ship"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // asking twice is asking once
		if st, err = e.Cancel(t.Context(), op.Scope, st.Record.ID); err != nil || st.Record.State != store.Running || !st.Record.Cancelling {
			t.Fatalf("%+v, %v; want it to run and to be asked to end", st.Record, err)
		}
	}
	if err := run.Release(t.Context(), stet.Again{After: time.Hour}); err != nil {
		t.Fatal(err)
	}
	st, err = e.Cancel(t.Context(), op.Scope, st.Record.ID)
	if err != nil || st.Record.State != store.Failed || st.Outcome.Reason != store.ReasonCancelled {
		t.Errorf("%+v, %v; want it failed, as cancelled", st, err)
	}
	if run, err := e.Take(t.Context(), stet.Item{ID: st.Record.ID, Name: "ship"}); err != nil || !run.Replayed() {
		t.Errorf("it runs again: %v", err)
	}
}
