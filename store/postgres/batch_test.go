package postgres

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// A batch that has queued runs without its callers' contexts: they may have left. A dead connection
// must not be waited for permanently.
func TestDeadConnectionIsNotWaitedForPermanently(t *testing.T) {
	const first, dead, next = 1, 2, 3
	hold, gathered := make(chan struct{}), make(chan struct{})
	b := &batcher[int]{limit: 10, most: 10, bytes: 10, size: func(*int) int { return 0 }, free: 1,
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
	stettest.Eventually(t, "the connection is in use", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.free == 0 })
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

// Each call of a batch gets the record that it asked for, though they share one statement. Without settings of the session's own the server reads such a small table from its
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
			rec, err := s.readResult(t.Context(), &o.v)
			if got := string(rec.Result.Body); o.err != nil || err != nil || rec.ID != ids[i] || got != want[ids[i]] {
				t.Errorf("call %d got %q of %v, wanted %q of %v; %v, %v", i, got, rec.ID, want[ids[i]], ids[i], o.err, err)
			}
		}
		slices.Reverse(ids)
	}
	if rec := mustRead(t, s, absent); rec.State != store.None || rec.Fence != 0 || rec.Result.Body != nil {
		t.Errorf("the record of a key without one: %+v", rec)
	}
}
