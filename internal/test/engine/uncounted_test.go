package engine_test

import (
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

// Attempts while the service is down must not count towards the limit of a message.
func TestAttemptThatIsReleasedUncountedDoesNotCount(t *testing.T) {
	for name, p := range map[string]stet.Policy{"remembered": {}, "forgotten": {ForgetReleased: true}} {
		t.Run(name, func(t *testing.T) {
			for _, o := range []stet.Options{{Policy: p}, with(encrypted(secret("k", 1)), p)} {
				e := newEngine(t, memory.New(memory.Options{}), o)
				begin := func() *stet.Lease {
					t.Helper()
					run, err := e.Begin(t.Context(), op)
					if err != nil {
						t.Fatal(err)
					}
					return run
				}
				counts := func(run *stet.Lease, want int) {
					t.Helper()
					st, err := e.Lookup(t.Context(), run.ID())
					if err != nil || st.Counted != want {
						t.Fatalf("%d of %d attempts count, %v; want %d", st.Counted, run.Attempt(), err, want)
					}
				}
				for range 20 {
					run := begin()
					counts(run, 1)
					yield(t, run)
				}
				run, runs := begin(), 0
				if _, err := stet.StepOnce(run.Context(), "reserve", counted(&runs, nil)); err != nil {
					t.Fatal(err)
				}
				if err := run.Release(t.Context(), stet.Again{}); err != nil { // this one does count
					t.Fatal(err)
				}
				for range 20 {
					run = begin()
					counts(run, 2)
					yield(t, run)
				}
				run = begin()
				if v, err := stet.StepOnce(run.Context(), "reserve", counted(&runs, nil)); err != nil || v != "run 1" {
					t.Fatal("the notes of a run are lost:", v, err)
				}
				yield(t, run)
				run = begin()
				counts(run, 2)
				complete(t, run, "x")
			}
		})
	}
}

func with(o stet.Options, p stet.Policy) stet.Options {
	o.Policy = p
	return o
}
