package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// whileHeld runs f while the writer is held, and then releases it. It uses a bubble: synctest.Wait
// returns when all other callers wait.
func whileHeld(t *testing.T, o Options, f func(t *testing.T, s *Store)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stet.db")
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(context.Background(), path, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.w.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		f(t, s)
		s.w.release()
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// claimTogether claims n keys at once and returns the number of commits.
func claimTogether(t *testing.T, n int, configure func(*writer)) int64 {
	t.Helper()
	var commits atomic.Int64
	fault.Set(func(p fault.Point) {
		if p == fault.CommitAfter {
			commits.Add(1)
		}
	})
	defer fault.Set(nil)
	whileHeld(t, Options{}, func(t *testing.T, s *Store) {
		configure(s.w)
		for i := range n {
			go func() {
				if _, err := s.Claim(context.Background(), request(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if queued := len(s.w.ops); queued != n {
			t.Errorf("%d of %d are queued", queued, n)
		}
	})
	return commits.Load()
}

func TestWaitingWritesShareOneTransaction(t *testing.T) {
	if n := claimTogether(t, 100, func(*writer) {}); n != 1 {
		t.Errorf("100 claims took %d commits", n)
	}
}

func TestBatchesAreBounded(t *testing.T) {
	if n := claimTogether(t, 95, func(w *writer) { w.batch = 10 }); n != 10 {
		t.Errorf("95 claims by tens took %d commits", n)
	}
}

func TestCallDidNothing_ContextEndsInTheQueue(t *testing.T) {
	whileHeld(t, Options{}, func(t *testing.T, s *Store) {
		ctx, cancel := context.WithCancel(context.Background())
		left := make(chan error, 2)
		go func() { _, err := s.Claim(ctx, request("k")); left <- err }()
		go func() {
			_, err := s.RunTx(ctx, request("k"), keep, never(t))
			left <- err
		}()
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-left; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "nothing was done") {
				t.Errorf("in the queue: %v", err)
			}
		}
		if len(s.w.ops)+s.w.exclusive != 0 {
			t.Errorf("%d and %d still queue", len(s.w.ops), s.w.exclusive)
		}
		if rec := mustRead(t, s, request("k").ID); rec.State != store.None {
			t.Errorf("the record: %+v", rec)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	whileHeld(t, Options{MaxQueue: 2}, func(t *testing.T, s *Store) {
		for i := range 2 {
			go func() { _, _ = s.Claim(context.Background(), request(fmt.Sprint(i))) }()
		}
		synctest.Wait()
		if _, err := s.Claim(t.Context(), request("k")); err == nil || !strings.Contains(err.Error(), "MaxQueue") {
			t.Errorf("the third: %v", err)
		}
		if _, err := s.RunTx(t.Context(), request("k"), keep, never(t)); err == nil || !strings.Contains(err.Error(), "MaxQueue") {
			t.Errorf("a transaction: %v", err)
		}
	})
}

// Exclusive callers get the writer in the order of asking, and neither they nor
// batches are overtaken permanently.
func TestWriterIsGivenInTheOrderOfAsking(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(s string) { mu.Lock(); defer mu.Unlock(); order = append(order, s) }
	whileHeld(t, Options{}, func(t *testing.T, s *Store) {
		exclusive := func(name string) {
			go func() {
				if err := s.w.acquire(context.Background()); err != nil {
					t.Error(err)
				}
				note(name)
				s.w.release()
			}()
			synctest.Wait()
		}
		grouped := func(name string) {
			go func() {
				if err := s.write(context.Background(), func(*session) error { note(name); return nil }); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		exclusive("x1")
		exclusive("x2")
		grouped("g1")
		exclusive("x3")
		grouped("g2") // joins g1's batch
		exclusive("x4")
	})
	if got := strings.Join(order, " "); got != "x1 x2 g1 g2 x3 x4" {
		t.Errorf("order %s", got)
	}
}

func TestOneFailingOperationDoesNotFailItsBatch(t *testing.T) {
	whileHeld(t, Options{}, func(t *testing.T, s *Store) {
		boom := errors.New("boom")
		for i := range 20 {
			go func() {
				if i == 7 {
					err := s.write(context.Background(), func(w *session) error {
						_ = w.tx.Rollback() // as SQLite does by itself on a full disk
						return boom
					})
					if !errors.Is(err, boom) {
						t.Errorf("the failing one: %v", err)
					}
					return
				}
				mustClaim(t, s, request(fmt.Sprint(i)))
			}()
		}
		synctest.Wait()
	})
}

func TestFailingCommitFailsTheWholeBatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{}, path)
	s.commit = func(*sql.Tx) error { return errors.New("the disk failed") }
	for range 3 {
		_, err := s.Claim(t.Context(), request("k"))
		if err == nil || !strings.Contains(err.Error(), "may or may not") {
			t.Errorf("Claim: %v", err)
		}
	}
	s.commit = (*sql.Tx).Commit
	mustClaim(t, s, request("k"))
}

func TestPanicOfTheLeaderStrandsNoFollower(t *testing.T) {
	clock := newClock()
	var bad atomic.Bool
	s := openStore(t, Options{Clock: func() time.Time {
		if bad.Load() {
			panic("no clock")
		}
		return clock.Now()
	}})
	bad.Store(true)
	var wg sync.WaitGroup
	var panics, errs atomic.Int64
	for i := range 50 {
		wg.Go(func() {
			defer func() {
				if recover() != nil {
					panics.Add(1)
				}
			}()
			if _, err := s.Claim(t.Context(), request(fmt.Sprint(i))); err != nil {
				errs.Add(1)
			}
		})
	}
	wg.Wait()
	if panics.Load()+errs.Load() != 50 || panics.Load() == 0 {
		t.Errorf("%d panics and %d errors of 50", panics.Load(), errs.Load())
	}
	bad.Store(false)
	mustClaim(t, s, request("after"))
}

func TestManyCallersOnFewKeysAgree(t *testing.T) {
	s := openStore(t, Options{})
	const keys, callers = 20, 200
	var granted [keys]atomic.Int64
	var fences sync.Map
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			req := request(fmt.Sprint(i % keys))
			rec, err := s.Claim(t.Context(), req)
			if err != nil {
				t.Error(err)
				return
			}
			if rec.State != store.Running || rec.Owner != req.Owner {
				return
			}
			granted[i%keys].Add(1)
			if _, dup := fences.LoadOrStore(rec.Fence, i); dup {
				t.Errorf("fence %d was given twice", rec.Fence)
			}
			mustSettle(t, s, rec.Claim(), "done")
		})
	}
	wg.Wait()
	for k := range keys {
		if n := granted[k].Load(); n != 1 {
			t.Errorf("key %d was granted %d times", k, n)
		}
		if rec := mustRead(t, s, request(fmt.Sprint(k)).ID); rec.State != store.Completed {
			t.Errorf("key %d: %+v", k, rec)
		}
	}
}

func TestClosedStoreRefuses(t *testing.T) {
	s := openStore(t, Options{})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Claim(t.Context(), request("k")); !errors.Is(err, errClosed) {
		t.Errorf("Claim: %v", err)
	}
	if _, err := s.Read(t.Context(), request("k").ID); !errors.Is(err, errClosed) {
		t.Errorf("Read: %v", err)
	}
	if _, err := s.RunTx(t.Context(), request("k"), keep, never(t)); !errors.Is(err, errClosed) {
		t.Errorf("RunTx: %v", err)
	}
}

// TestABatchThatIsLargerThanTheCacheIsOneTransaction: what does not fit is in the log before
// the commit, and none of it is lost.
func TestABatchThatIsLargerThanTheCacheIsOneTransaction(t *testing.T) {
	const n, size = 40, 512 << 10
	if n*size <= cache<<10 {
		t.Fatal("it fits")
	}
	var commits atomic.Int64
	var path string
	claims := make([]store.Claim, n)
	settlement := func(i int) store.Settlement {
		return store.Settlement{State: store.Completed, Result: store.Result{Status: 200, Body: bytes.Repeat([]byte{byte(i)}, size)}}
	}
	keep := store.Retention{Result: 24 * time.Hour, Tombstone: 48 * time.Hour}
	whileHeld(t, Options{}, func(t *testing.T, s *Store) {
		path = s.path
		s.w.release()
		for i := range claims {
			rec, err := s.Claim(t.Context(), request(fmt.Sprint(i)))
			if err != nil {
				t.Fatal(err)
			}
			claims[i] = rec.Claim()
		}
		if err := s.w.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		fault.Set(func(p fault.Point) {
			if p == fault.CommitAfter {
				commits.Add(1)
			}
		})
		for i := range claims {
			go func() {
				if err := s.Settle(context.Background(), claims[i], settlement(i), keep); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
	})
	fault.Set(nil)
	if got := commits.Load(); got != 1 {
		t.Errorf("%d commits", got)
	}
	bubble := time.Date(2000, 1, 1, 0, 0, 1, 0, time.UTC)
	s := openStore(t, Options{Clock: func() time.Time { return bubble }}, path)
	for i, c := range claims {
		rec, err := s.Read(t.Context(), c.ID)
		if err != nil || !rec.Result.Equal(settlement(i).Result) {
			t.Errorf("%d: %v, %v, %d bytes", i, err, rec.State, len(rec.Result.Body))
		}
	}
}
