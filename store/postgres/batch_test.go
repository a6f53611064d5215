package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/store"
)

// A call that waited for a lane alone goes out without its caller's context: its caller may have
// left. A connection that says nothing any more must not keep the lane for ever.
func TestDeadConnectionGivesItsLaneBack(t *testing.T) {
	const first, dead, next = 1, 2, 3
	hold, gathered := make(chan struct{}), make(chan struct{})
	b := &batcher[int]{limit: 10, most: 10, bytes: 10, size: func(*int) int { return 0 }, lanes: 1,
		patience: 50 * time.Millisecond, ctx: t.Context()}
	b.run = func(ctx context.Context, batch []*op[int]) {
		for _, o := range batch {
			switch o.v {
			case first:
				<-hold
			case dead:
				close(gathered)
				<-ctx.Done()
				o.err = context.Cause(ctx)
			}
		}
	}
	answers := make(chan error, 2)
	call := func(v int) {
		_, err := b.do(t.Context(), v)
		answers <- err
	}
	go call(first)
	stettest.Eventually(t, "the lane is in use", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.lanes == 0 })
	go call(dead)
	stettest.Eventually(t, "the second call waits", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.queue) == 1 })
	close(hold)
	<-gathered
	if err := errors.Join(<-answers, <-answers); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call on a dead connection: %v", err)
	}
	if _, err := b.do(t.Context(), next); err != nil {
		t.Errorf("the next call: %v", err)
	}
	b.close()
}

// With one lane that has nearly all callers and another one that has next to none, each of
// which comes back with those that it had, half of the server does nothing.
func TestLanesShareReads(t *testing.T) {
	b := &batcher[int]{limit: 100, most: 100, size: func(*int) int { return 0 }, even: true, lanes: 2}
	b.take()
	b.take()
	b.queue = make([]*op[int], 40)
	for i := range b.queue {
		b.queue[i] = new(op[int])
	}
	b.sent = 1 // of the other lane
	first := b.gather(nil, 0)
	b.sent-- // which comes back
	if second := b.gather(nil, 0); len(first) != 21 || len(second) != 19 {
		t.Errorf("40 calls, while one is on its way, were shared as %d and %d", len(first), len(second))
	}
}

func TestReadsWaitForALaneThatHasJustAnswered(t *testing.T) {
	sizes := make(chan int, 10)
	b := &batcher[int]{limit: 100, most: 100, bytes: 1, size: func(*int) int { return 0 }, even: true, lanes: 2, patience: time.Minute, ctx: t.Context()}
	b.run = func(_ context.Context, batch []*op[int]) { sizes <- len(batch) }
	b.take()
	b.soon = 1 // the lane that was taken has answered
	var calls sync.WaitGroup
	for range 12 {
		calls.Go(func() {
			if _, err := b.do(t.Context(), 0); err != nil {
				t.Error(err)
			}
		})
	}
	stettest.Eventually(t, "all calls wait, though a lane is free", func() bool { return b.waiting() == 12 })
	batch := b.gather(nil, 1)
	if len(batch) != 6 {
		t.Fatalf("%d of 12 calls go out, and another lane is free", len(batch))
	}
	if other := <-sizes; other != 6 {
		t.Errorf("%d of 12 calls went out on the other lane", other)
	}
	b.answer(batch)
	if batch = b.gather(nil, 1); len(batch) != 0 {
		t.Errorf("%d calls were left", len(batch))
	}
	calls.Wait()
	b.close()
	if b.lanes != 2 || b.used != 0 || b.soon != 0 || b.sent != 0 {
		t.Errorf("in the end %d lanes are free, %d in use, %d come back, %d calls are on their way", b.lanes, b.used, b.soon, b.sent)
	}
}

// Each call of a batch gets the record that it asked for, though they share one statement, and the memory of
// calls that have ended is used again. Without settings of the session's own the server reads such a small table from its
// beginning, and returns records in the order in which they were written.
func TestReadsInOneBatchGetTheirOwnRecords(t *testing.T) {
	t.Run("in order", func(t *testing.T) { readInOneBatch(t, open(t, nil, Options{})) })
	t.Run("out of order", func(t *testing.T) {
		config := database(t).Config()
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		readInOneBatch(t, open(t, pool, Options{PgBouncer: true}))
	})
}

func readInOneBatch(t *testing.T, s *Store) {
	var ids []store.ID
	want := make(map[store.ID]string)
	for _, result := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		rec := mustClaim(t, s, request(stet.NewKey()))
		mustSettle(t, s, rec.Claim(), result)
		ids, want[rec.ID] = append(ids, rec.ID), result
	}
	absent := request(stet.NewKey()).ID
	ids = append(ids, absent, ids[1], ids[0], absent, ids[0])
	for range 2 {
		var batch []*op[read]
		for _, id := range ids {
			batch = append(batch, &op[read]{v: read{id: id}})
		}
		asked := slices.Clone(batch)
		s.runReads(t.Context(), batch)
		for i, o := range asked {
			rec, err := s.wasRead(t.Context(), &o.v)
			if got := string(rec.Result.Body); o.err != nil || err != nil || rec.ID != ids[i] || got != want[ids[i]] {
				t.Errorf("call %d got %q of %v, wanted %q of %v; %v, %v", i, got, rec.ID, want[ids[i]], ids[i], o.err, err)
			}
		}
		slices.Reverse(ids)
	}
	first := mustRead(t, s, ids[0])
	if rec := mustRead(t, s, absent); rec.State != store.None || rec.Fence != 0 || rec.Result.Body != nil {
		t.Errorf("what another call has read is in the record of a key without one: %+v", rec)
	}
	for _, id := range ids {
		mustRead(t, s, id)
	}
	if string(first.Result.Body) != want[ids[0]] {
		t.Errorf("a record that was returned has become %q", first.Result.Body)
	}
}
