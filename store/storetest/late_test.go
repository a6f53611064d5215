package storetest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/store"
)

// slow is a store whose first calls take long, as on a machine that is busy for a while.
type slow struct {
	*small
	left *int
}

func (s slow) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := s.small.Claim(ctx, req)
	if *s.left--; *s.left >= 0 {
		time.Sleep(20 * time.Second) // the reply is late
	}
	return rec, err
}

// onRealClock is a harness of the small store that cannot move its clock, and whose
// first calls are slow.
func onRealClock(bug string, slowly int) Harness {
	return Harness{Unit: 150 * time.Millisecond, New: func(testing.TB) store.Store {
		s := smallHarness(bug).New(nil).(*small)
		s.now = time.Now
		return slow{s, &slowly}
	}}
}

func claimCalled(t *testing.T, name string) check {
	t.Helper()
	for _, c := range checks(onRealClock("", 0), onRealClock("", 0).New(t)) {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("there is no claim called %q", name)
	return check{}
}

const nextClaim = "the next claim marks an expired claim unknown"

func TestSlowMachineIsNotTakenForABrokenStore(t *testing.T) {
	const name = "a query knows how old a record is"
	for left, want := range map[int]int{0: 0, 4: 1, 400: 2} { // how many tries were not judged
		synctest.Test(t, func(t *testing.T) {
			rec := observe(t, claimCalled(t, name), onRealClock("", left))
			if n := strings.Count(rec.Text(), "says nothing of the store"); n != want {
				t.Errorf("with %d slow calls, %d tries were not judged; want %d:\n%s", left, n, want, rec.Text())
			}
			if rec.Failed() != (left == 400) {
				t.Errorf("with %d slow calls, it failed: %v; a slow machine must be reported:\n%s", left, rec.Failed(), rec.Text())
			}
		})
	}
}

func TestBrokenStoreIsFoundOnASlowMachine(t *testing.T) {
	for left, want := range map[int]int{0: 0, 4: 1} {
		synctest.Test(t, func(t *testing.T) {
			rec := observe(t, claimCalled(t, nextClaim), onRealClock("runs expired claims again", left))
			if n := strings.Count(rec.Text(), "says nothing of the store"); !rec.Failed() || n != want {
				t.Errorf("with %d slow calls, it failed: %v; %d tries were not judged, want %d:\n%s", left, rec.Failed(), n, want, rec.Text())
			}
		})
	}
}

// What does not depend on time is not tried again.
func TestFailureOfACaseThatIsNotAboutTimeStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := observe(t, claimCalled(t, "results come back byte for byte"), onRealClock("cuts results at NUL", 1000))
		if !rec.Failed() || strings.Contains(rec.Text(), "says nothing of the store") {
			t.Errorf("it failed: %v:\n%s", rec.Failed(), rec.Text())
		}
	})
}
