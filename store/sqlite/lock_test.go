package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/store"
)

// whileLocked runs f while another process has the file's lock, as SQLite sees it,
// in a bubble whose clock tells how long callers wait.
func whileLocked(t *testing.T, o Options, f func(t *testing.T, s *Store, unlock func())) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stet.db")
	synctest.Test(t, func(t *testing.T) {
		var stores [2]*Store
		for i := range stores {
			var err error
			if stores[i], err = Open(context.Background(), path, o); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := stores[i].Close(); err != nil {
					t.Error(err)
				}
			}()
		}
		tx, err := stores[1].DB().Begin()
		if err != nil {
			t.Fatal(err)
		}
		unlock := func() { _ = tx.Rollback() }
		defer unlock()
		f(t, stores[0], unlock)
	})
}

// writes are calls that wait for the file's lock.
func writes(t *testing.T, s *Store) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Claim":  func(ctx context.Context) error { _, err := s.Claim(ctx, request("k")); return err },
		"Accept": func(ctx context.Context) error { _, err := s.Accept(ctx, request("k"), nil, 0); return err },
		"Extend": func(ctx context.Context) error {
			_, err := s.Extend(ctx, []store.Claim{{ID: request("k").ID, Fence: 1}}, time.Minute)
			return err
		},
		"RunTx": func(ctx context.Context) error { _, err := s.RunTx(ctx, request("k"), keep, never(t)); return err },
		"InTx":  func(ctx context.Context) error { return s.InTx(ctx, nil) },
	}
}

func TestCallDidNothing_ContextEndsWhileTheFileIsLocked(t *testing.T) {
	whileLocked(t, Options{}, func(t *testing.T, s *Store, _ func()) {
		for name, call := range writes(t, s) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			began := time.Now()
			err := call(ctx)
			if took := time.Since(began); !errors.Is(err, store.ErrNotDone) || !errors.Is(err, context.DeadlineExceeded) || took != 2*time.Second {
				t.Errorf("%s with two seconds' time came back after %v: %v", name, took, err)
			}
			cancel()
		}
	})
}

// However many there are: each waits on its own, not in turn.
func TestCallersWaitForALockedFileTogether(t *testing.T) {
	whileLocked(t, Options{}, func(t *testing.T, s *Store, _ func()) {
		var wg sync.WaitGroup
		for name, call := range writes(t, s) {
			for range 20 {
				wg.Go(func() {
					began := time.Now()
					err := call(context.Background())
					if took := time.Since(began); !errors.Is(err, store.ErrNotDone) || !strings.Contains(err.Error(), "BusyTimeout") || took > 6*time.Second {
						t.Errorf("%s came back after %v: %v", name, took, err)
					}
				})
			}
		}
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFileThatIsUnlockedInTimeIsWrittenTo(t *testing.T) {
	whileLocked(t, Options{}, func(t *testing.T, s *Store, unlock func()) {
		time.AfterFunc(4*time.Second, unlock)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { mustClaim(t, s, request(fmt.Sprint(i))) })
		}
		wg.Wait()
	})
}

// A caller that came late, and waited for a transaction of this process first, is
// not refused because the file was locked for that time.
func TestWaitForALockStartsAnewAfterItWasFree(t *testing.T) {
	whileLocked(t, Options{}, func(t *testing.T, s *Store, unlock func()) {
		if _, err := s.Claim(t.Context(), request("k")); !errors.Is(err, store.ErrNotDone) {
			t.Fatal(err)
		}
		unlock()
		mustClaim(t, s, request("k"))
		if !s.w.blocked.IsZero() {
			t.Error("the lock counts as held still")
		}
	})
}

// The file's lock is polled: a process that releases it only for moments would keep
// it from all others, whose runs then lose their leases.
func TestProcessThatIsBusyLeavesOthersTheirTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	busy, other := openStore(t, Options{}, path), openStore(t, Options{}, path)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = busy.InTx(ctx, func(context.Context, *sql.Tx) error {
					time.Sleep(20 * time.Millisecond) // of work
					return nil
				})
			}
		})
	}
	began := time.Now()
	for i := range 10 {
		if _, err := other.Claim(t.Context(), request(fmt.Sprint("k", i))); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 25*time.Second { // half of what ten BusyTimeouts are
		t.Errorf("ten claims took %v", took)
	}
}
