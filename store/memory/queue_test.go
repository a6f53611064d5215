package memory

import (
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// An entry with a long delay must not stay after its record has ended.
func TestQueueHasNoEntryOfAnEndedOperation(t *testing.T) {
	now := time.Now()
	s := New(Options{Clock: func() time.Time { return now }})
	stays := accept(t, s, 0)
	for range 10_000 {
		c := accept(t, s, store.MaxDelay)
		if _, err := s.Cancel(t.Context(), c, store.Settlement{State: store.Failed}, store.Retention{Result: 1, Tombstone: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Due(t.Context(), 1, time.Nanosecond); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
		if _, err := s.Sweep(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.queues.places; n > 2*s.Len()+maxOutdated+1 {
		t.Errorf("%d places for %d records", n, s.Len())
	}
	if recs, err := s.Due(t.Context(), 10, time.Hour); err != nil || len(recs) != 1 || recs[0].ID != stays.ID {
		t.Errorf("%d records are due, %v; want the waiting one", len(recs), err)
	}
}

func accept(t *testing.T, s *Store, after time.Duration) store.Claim {
	t.Helper()
	req := store.ClaimRequest{ID: store.Digest("", "acct_1", stet.NewKey()), Owner: store.NewOwner()}
	rec, err := s.Accept(t.Context(), req, []byte("work"), after)
	if err != nil || rec.State != store.Accepted {
		t.Fatalf("got %v, %v; want rec.State == store.Accepted, no error", rec.State, err)
	}
	return rec.Claim()
}
