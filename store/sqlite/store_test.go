package sqlite

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClock is a clock that only the test moves.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *fakeClock { return &fakeClock{now: time.UnixMicro(1_800_000_000_000_000)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// openStore opens a store in a fresh file, or in the one given.
func openStore(t testing.TB, o Options, path ...string) *Store {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stet.db")
	if len(path) > 0 {
		file = path[0]
	}
	s, err := Open(context.Background(), file, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

var keep = store.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}

func request(key string) store.ClaimRequest {
	return store.ClaimRequest{
		ID: store.Digest("", "test", key), Scope: store.DigestScope("", "test"),
		Fingerprint: stet.NewFingerprint([]byte(key)), Owner: store.NewOwner(), Lease: time.Minute,
	}
}

func completed(result string) store.Settlement {
	return store.Settlement{State: store.Completed, Result: store.Result{Body: []byte(result)}}
}

// mustClaim claims and demands to get it.
func mustClaim(t testing.TB, s store.Store, req store.ClaimRequest) store.Record {
	t.Helper()
	rec, err := s.Claim(context.Background(), req)
	if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
		t.Fatalf("Claim: %+v, %v", rec, err)
	}
	return rec
}

func mustSettle(t testing.TB, s store.Store, c store.Claim, result string) {
	t.Helper()
	if err := s.Settle(context.Background(), c, completed(result), keep); err != nil {
		t.Fatalf("Settle: %v", err)
	}
}

func mustRead(t testing.TB, s store.Store, id store.ID) store.Record {
	t.Helper()
	rec, err := s.Read(context.Background(), id)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return rec
}
