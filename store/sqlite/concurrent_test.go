package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// Close copies the log back into the file, which a read in progress would prevent.
func TestCloseWaitsForReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	mustClaim(t, s, request("k"))
	reading, resume, read, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		read <- s.read(context.Background(), func(r *session) error {
			return r.rows(qSweep, func([]any) error {
				close(reading)
				<-resume
				return nil
			}, int64(1<<62), int64(1000))
		})
	}()
	<-reading
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		t.Errorf("Close returned %v while a read was in progress", err)
		close(resume)
	case <-time.After(100 * time.Millisecond):
		close(resume)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("the log is still there after Close")
	}
	if _, err := s.Read(t.Context(), request("k").ID); err == nil {
		t.Error("Read after Close succeeded")
	}
}

// A batch continues after the context of one of its callers has ended. The race detector
// finds a result that both write.
func TestExtendEndsWithItsContext_WhileItsBatchContinues(t *testing.T) {
	s := openStore(t, Options{})
	a, b := mustClaim(t, s, request("a")).Claim(), mustClaim(t, s, request("b")).Claim()
	mustSettle(t, s, b, "done")
	committing, resume := make(chan struct{}), make(chan struct{})
	s.commit = func(tx *sql.Tx) error {
		close(committing)
		<-resume
		return tx.Commit()
	}
	if err := s.w.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = s.Claim(context.Background(), request("c")) }) // leads the batch
	time.Sleep(50 * time.Millisecond)
	extended := make(chan error, 1)
	go func() {
		_, err := s.Extend(ctx, []store.Claim{a, b}, time.Hour)
		extended <- err
	}()
	time.Sleep(50 * time.Millisecond)
	s.w.release()
	<-committing
	cancel()
	select {
	case <-extended:
	case <-time.After(time.Second): // it leads the batch
	}
	close(resume)
	wg.Wait()
}

func TestConcurrentDueCallsShareTheBacklog(t *testing.T) {
	s := openStore(t, Options{})
	for i := range 20 {
		mustAccept(t, s, request(fmt.Sprint(i)), "work")
	}
	if err := s.w.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if recs, err := s.Due(context.Background(), 5, time.Hour); err != nil || len(recs) != 5 {
				t.Errorf("Due returned %d records, %v; want 5 of the 20", len(recs), err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // both have checked, and wait for the writer
	s.w.release()
	wg.Wait()
}

func TestDueOfManyNamesContinuesWithTheNext(t *testing.T) {
	s := openStore(t, Options{})
	for i := range store.MaxDueNames + 10 {
		req := request(fmt.Sprint(i))
		req.Label.Name = fmt.Sprintf("name-%04d", i)
		mustAccept(t, s, req, "work")
	}
	for _, want := range []int{store.MaxDueNames, 10, 0} {
		if recs, err := s.Due(t.Context(), 1000, time.Hour); err != nil || len(recs) != want {
			t.Errorf("Due returned %d records, %v; want %d", len(recs), err, want)
		}
	}
}

func TestDueBeginsAgainAfterTheLastName(t *testing.T) {
	s := openStore(t, Options{})
	for i := range store.MaxDueNames {
		req := request(fmt.Sprint(i))
		req.Label.Name = fmt.Sprintf("name-%04d", i)
		mustAccept(t, s, req, "work")
	}
	for range 2 {
		if recs, err := s.Due(t.Context(), 10, time.Hour); err != nil || len(recs) != 10 {
			t.Errorf("Due returned %d records, %v; want 10", len(recs), err)
		}
	}
}
