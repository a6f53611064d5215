package tier

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	slots    = 4   // transactions at a time; further insertions wait, and share the next one
	maxBatch = 256 // insertions of one transaction
)

// insertion is an outcome to insert into SQL.
type insertion struct {
	req  store.ClaimRequest
	out  store.Settlement
	keep store.Retention
	rec  store.Record // None if the insertion must be made alone
	done chan struct{}
}

// batcher inserts outcomes that arrive at the same time in one transaction.
type batcher struct {
	alone    func(ctx context.Context, in *insertion) (store.Record, error)
	together func(ctx context.Context, ins []*insertion) ([]store.Record, error) // nil without groups

	mu      sync.Mutex
	busy    int // slots
	waiting []*insertion
}

// newBatcher returns a batcher of a store. Without groups, each outcome has its own transaction.
func newBatcher[Tx any](s store.TxStore[Tx]) *batcher {
	b := &batcher{alone: func(ctx context.Context, in *insertion) (store.Record, error) {
		return s.RunTx(ctx, in.req, in.keep, func(context.Context, Tx, store.Record) (store.Settlement, error) { return in.out, nil })
	}}
	if g, ok := s.(store.GroupTxStore[Tx]); ok {
		b.together = func(ctx context.Context, ins []*insertion) ([]store.Record, error) {
			reqs, keep := make([]store.ClaimRequest, len(ins)), make([]store.Retention, len(ins))
			for i, in := range ins {
				reqs[i], keep[i] = in.req, in.keep
			}
			return g.RunGroup(ctx, reqs, keep, func(_ context.Context, _ Tx, i int, _ store.Record) (store.Settlement, error) { return ins[i].out, nil })
		}
	}
	return b
}

// insert stores the outcome if the key has no record, and returns the record that the key has then.
func (b *batcher) insert(ctx context.Context, in *insertion) (store.Record, error) {
	if b.together == nil {
		return b.alone(ctx, in)
	}
	if b.enter(in) {
		defer b.leave()
		return b.alone(ctx, in)
	}
	select {
	case <-ctx.Done():
		b.forget(in)
		return store.Record{}, ctx.Err()
	case <-in.done:
	}
	if in.rec.State == store.None { // the key has a record, or its batch failed
		return b.alone(ctx, in)
	}
	return in.rec, nil
}

// enter takes a slot, or queues the insertion.
func (b *batcher) enter(in *insertion) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy < slots {
		b.busy++
		return true
	}
	in.done = make(chan struct{})
	b.waiting = append(b.waiting, in)
	return false
}

// forget removes an insertion whose call has ended from the queue.
func (b *batcher) forget(in *insertion) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, in); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	}
}

// leave passes the slot to the insertions that wait.
func (b *batcher) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), maxBatch)
	if n == 0 {
		b.busy--
		return
	}
	batch := slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	go b.run(batch)
}

// run inserts a batch. Of several insertions with one key it makes the first.
func (b *batcher) run(batch []*insertion) {
	defer b.leave()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	first, ins := make(map[store.ID]bool, len(batch)), make([]*insertion, 0, len(batch))
	for _, in := range batch {
		if !first[in.req.ID] {
			first[in.req.ID], ins = true, append(ins, in)
		}
	}
	if recs, err := b.together(ctx, ins); err == nil {
		for i, rec := range recs {
			ins[i].rec = rec
		}
	}
	for _, in := range batch {
		close(in.done)
	}
}
