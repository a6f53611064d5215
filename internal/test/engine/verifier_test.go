package engine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// A retry, a worker and an operator who asks for the Status see one expired run.
func TestVerifierReceivesTheStatusOfTheExpiredRun(t *testing.T) {
	var asked []stet.Status
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{SweepEvery: -1, Policy: stet.Policy{Verify: func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		asked = append(asked, st)
		return stet.CannotKnow(), nil
	}}})
	it := diesCharging(t, st)
	openStep(t, begin(t, e, other))
	if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindUnknown {
		t.Error(err)
	}
	if _, err := e.Begin(t.Context(), other); stet.KindOf(err) != stet.KindUnknown {
		t.Error(err)
	}
	if len(asked) != 2 {
		t.Fatalf("asked about %+v; want two runs", asked)
	}
	for i, of := range []stet.Op{op, other} {
		got := asked[i]
		want, err := e.Lookup(t.Context(), e.ID(of.Scope, of.Key))
		if err != nil {
			t.Fatal(err)
		}
		if got.Op.Scope != of.Scope || got.Op.Key != of.Key || got.Op.Fingerprint != of.Fingerprint || got.OpenStep != "charge" || got.Name != want.Name || !got.AcceptedAt.Equal(want.AcceptedAt) {
			t.Errorf("the verifier sees %+v; want %+v, as %+v", got, of, want)
		}
		if r, w := got.Record, want.Record; r.ID != w.ID || r.Fence != w.Fence || r.Attempt != 1 || !r.ClaimedAt.Equal(w.ClaimedAt) || r.State != store.Unknown || r.Work != nil || r.Notes.Version != 0 || r.Notes.Data != nil {
			t.Errorf("the verifier sees the record %+v; want %+v", r, w)
		}
	}
}

// ItHappened does not need the notes.
func TestVerifierIsAskedThoughTheNotesCannotBeRead(t *testing.T) {
	st := memory.New(memory.Options{})
	resolution := stet.ItDidNotHappen()
	e := newEngine(t, st, stet.Options{SweepEvery: -1, Policy: stet.Policy{Verify: func(context.Context, stet.Status) (stet.Resolution, error) { return resolution, nil }}})
	run := begin(t, e, op)
	if err := errors.Join(st.Save(t.Context(), claimOf(t, st, run), store.Notes{Version: 1, Data: []byte("{")}, false), run.MarkUnknown(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("it did not happen, although the notes cannot be read: %v; want it damaged", err)
	}
	resolution = stet.ItHappened(stet.Outcome{Body: []byte("found")})
	if again, err := e.Begin(t.Context(), op); err != nil || !again.Replayed() || string(again.Outcome().Body) != "found" {
		t.Errorf("%+v, %v; want a replay of what the verifier found", again, err)
	}
}
