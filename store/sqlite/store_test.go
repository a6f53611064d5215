package sqlite

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
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

var keep = stet.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}

func request(key string) stet.ClaimRequest {
	return stet.ClaimRequest{
		ID: stet.Digest("", "test", key), Scope: stet.DigestScope("", "test"),
		Fingerprint: stet.NewFingerprint([]byte(key)), Owner: stet.NewOwner(), Lease: time.Minute,
	}
}

func completed(result string) stet.Outcome {
	return stet.Outcome{State: stet.Completed, Result: []byte(result)}
}

// mustClaim claims and demands to get it.
func mustClaim(t testing.TB, s stet.Store, req stet.ClaimRequest) stet.Record {
	t.Helper()
	rec, err := s.Claim(context.Background(), req)
	if err != nil || rec.State != stet.Running || rec.Owner != req.Owner {
		t.Fatalf("Claim: %+v, %v", rec, err)
	}
	return rec
}

func mustSettle(t testing.TB, s stet.Store, c stet.Claim, result string) {
	t.Helper()
	if err := s.Settle(context.Background(), c, completed(result), keep); err != nil {
		t.Fatalf("Settle: %v", err)
	}
}

func mustRead(t testing.TB, s stet.Store, id stet.ID) stet.Record {
	t.Helper()
	rec, err := s.Read(context.Background(), id)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return rec
}
