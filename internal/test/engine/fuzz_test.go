package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/seal"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// kept is a store that returns the same record for every key.
type kept struct {
	*memory.Store
	rec store.Record
}

func (s *kept) Look(context.Context, store.ID) (store.Record, error) { return s.rec, nil }

func (s *kept) Due(context.Context, int, time.Duration, ...string) ([]store.Record, error) {
	return []store.Record{s.rec}, nil
}

func (s *kept) DueMessages(context.Context, int, time.Duration) ([]store.Record, error) {
	return []store.Record{s.rec}, nil
}

// FuzzRecord: whatever a record says in its envelopes (of which package seal has
// targets of its own), it is read, or said to be damaged, and holds up no other.
func FuzzRecord(f *testing.F) {
	f.Add(uint8(store.Accepted), []byte(`{"Name":"ship","Key":"YQ==","Payload":"e30="}`), []byte(`{}`), []byte{})
	f.Add(uint8(store.Running), []byte(`{}`), []byte(`{"Steps":{"a":{"Done":true}},"Progress":{"Fraction":0.5}}`), []byte{})
	f.Add(uint8(store.Completed), []byte(`{"Messages":[{"ID":"1","To":"t","Body":"e30="}]}`), []byte(`{}`), []byte(`"result"`))
	st := &kept{Store: memory.New(memory.Options{})}
	e, err := stet.New(st, stet.Options{SweepEvery: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = e.Close() })
	f.Fuzz(func(t *testing.T, state uint8, work, notes, result []byte) {
		st.rec = store.Record{ID: e.ID("shop", "key"), State: store.State(state % (uint8(store.Accepted) + 1)), Fence: 1, Attempt: 1,
			Work: seal.Seal(work), Outbox: seal.Seal(work), Notes: store.Notes{Data: seal.Seal(notes)}, Result: store.Result{Status: int(state), Type: string(notes), Head: result, Body: work}}
		st, err := e.Lookup(t.Context(), st.rec.ID)
		if err != nil && stet.KindOf(err) != stet.KindDamaged {
			t.Errorf("Lookup: %v", err)
		}
		if err == nil && (st.Record.Work != nil || st.Record.Notes.Data != nil || st.Record.Outbox != nil || !st.Record.Result.IsZero()) {
			t.Error("a status has the bytes of its record")
		}
		items, err := e.Due(t.Context(), 1, time.Minute)
		if err != nil || len(items) > 1 {
			t.Errorf("Due: %v, %v", items, err)
		}
		n, err := e.Relay(t.Context(), 1, time.Minute, func(operations [][]stet.Message, told func(int, error)) error {
			told(0, nil)
			return nil
		})
		if err != nil || n > 1 {
			t.Errorf("Relay: %d, %v", n, err)
		}
	})
}
