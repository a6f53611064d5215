package zookeeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// The sweep listed a place, its session ended, and the next one reads from a server that lags behind.
func TestStaleReadOfTheSweepRemovesNoPlace(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers(t))
	before := request("before")
	stale, err := s.see(t.Context(), before.ID, true, 0) // there is no record yet
	if err != nil {
		t.Fatal(err)
	}
	rec := mustClaim(t, s, before)
	v, err := s.see(t.Context(), before.ID, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.unlist(t.Context(), stale, s.place(v.node)); !conflict(err) {
		t.Errorf("the place of a record that the read did not show was removed: %v", err)
	}
	mustSettle(t, s, rec.Claim(), "x")
	if err := s.unlist(t.Context(), v, s.place(v.node)); !conflict(err) {
		t.Errorf("a place was removed after a read of an earlier version: %v", err)
	}

	if err := s.Release(t.Context(), mustClaim(t, s, request("gone")).Claim(), store.Retention{}); err != nil {
		t.Fatal(err)
	}
	gone, err := s.see(t.Context(), request("gone").ID, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	place := s.place(gone.node)
	if err := s.conn.Delete(s.path(gone.id), -1); err != nil {
		t.Fatal(err)
	}
	none := view{node: &node{id: gone.id}}
	if err := s.unlist(t.Context(), none, place); err != nil {
		t.Errorf("the place of no record was not removed: %v", err)
	}
	for what, path := range map[string]string{"the place": place, "a record": s.path(gone.id)} {
		if exists, _, err := s.conn.Exists(path); exists || err != nil {
			t.Errorf("%s is there: %v, %v", what, exists, err)
		}
	}
}

// The records are in different folders of the schedule, and each sweep ends at its limit in one of them.
func TestSweepReportsMoreWhileRecordsAreDue(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers(t))
	const records = 6
	for n := range records {
		req := request(fmt.Sprint("more ", n))
		req.Lease = store.MinLease
		mustClaim(t, s, req)
	}
	time.Sleep(2*store.MinLease + time.Second) // the store's clock is a lower bound, at most 1 s old
	for swept, more := 0, true; more; {
		sum, err := s.Sweep(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if swept += sum.MarkedUnknown; !sum.More && swept < records {
			t.Fatalf("a sweep reports no more after %d of %d records", swept, records)
		}
		more = sum.More
	}
}
