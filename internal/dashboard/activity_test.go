package dashboard_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/observe"
)

func TestActivityCountsEventsByInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &dashboard.Activity{}
		f := open(t, dashboard.Options{Activity: a}, stet.Options{})
		event := func(ev observe.Event) { a.Observe(t.Context(), ev) }
		event(observe.Event{Kind: observe.Claimed}) // forgotten after half an hour
		time.Sleep(30 * time.Minute)
		for _, kind := range []observe.Kind{observe.Claimed, observe.Claimed, observe.Replayed, observe.InFlight, observe.Mismatched, observe.MarkedUnknown, observe.Swept} {
			event(observe.Event{Kind: kind})
		}
		event(observe.Event{Kind: observe.StoreFailed, Err: errors.New("down")})
		event(observe.Event{Kind: observe.Settled, Elapsed: 10 * time.Millisecond})
		event(observe.Event{Kind: observe.Released, Elapsed: 30 * time.Millisecond})
		time.Sleep(10 * time.Second)
		event(observe.Event{Kind: observe.Claimed})
		if _, err := f.engine.Accept(t.Context(), op("job"), stet.Work{Name: "pay"}); err != nil {
			t.Fatal(err)
		}
		f.ask("GET", "/v1/summary", "")
		type interval struct {
			At                                          time.Time
			Runs, Replays, Conflicts, Unknown, Failures int
			Waiting                                     *int
			Took                                        float64 `json:"took_ms"`
			Longest                                     float64 `json:"longest_ms"`
		}
		got := decode[struct {
			Step   float64 `json:"step_seconds"`
			Points []interval
		}](t, f.ask("GET", "/v1/activity", ""))
		if got.Step != 10 || len(got.Points) != 180 {
			t.Fatalf("got %d intervals of %v s, want 180 of 10 s", len(got.Points), got.Step)
		}
		last := got.Points[178]
		last.At = time.Time{}
		if want := (interval{Runs: 2, Replays: 1, Conflicts: 2, Unknown: 1, Failures: 1, Took: 20, Longest: 30}); last != want {
			t.Errorf("got %+v, want %+v", last, want)
		}
		runs := 0
		for i, p := range got.Points {
			runs += p.Runs
			if i > 0 && p.At.Sub(got.Points[i-1].At) != 10*time.Second {
				t.Errorf("after %v comes %v", got.Points[i-1].At, p.At)
			}
		}
		if now := got.Points[179]; runs != 3 || now.Waiting == nil || *now.Waiting != 1 {
			t.Errorf("%d runs in half an hour, and now %+v; want 3 runs, and 1 job that waits", runs, now)
		}
	})
}

func TestWithoutActivityThereAreNoIntervals(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	if a := f.ask("GET", "/v1/activity", ""); a.status != 200 || a.body != `{"step_seconds":10,"points":[]}`+"\n" {
		t.Errorf("got %d %s", a.status, a.body)
	}
}
