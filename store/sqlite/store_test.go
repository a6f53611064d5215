package sqlite

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/test/stettest"
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

// What tests of stores share.
var (
	keep               = stettest.Keep
	request, completed = stettest.Request, stettest.Completed

	mustClaim, mustSettle, mustRead = stettest.Claim, stettest.Settle, stettest.Read
	mustAccept, mustTake            = stettest.Accept, stettest.Take
)
