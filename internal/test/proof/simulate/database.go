package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

// database is the far side of the transactional mode: what a server does with
// the statements of a transaction. It is an interface for the sake of defective
// ones. All but look are carried out once for a transaction at most.
type database interface {
	// enter begins the transaction if the record allows a run and no other
	// one has the key. Otherwise it returns what store.TxStore says.
	enter(t *txn) (store.Record, error)
	// write has the transaction's one effect, which shows when it commits.
	write(t *txn) error
	// commit makes the effect and the record durable, or neither.
	commit(t *txn, out store.Settlement, keep store.Retention) error
	// abort rolls back uncommitted writes.
	abort(t *txn)
	// look returns the record, if the transaction has ended; the second result
	// says whether it has.
	look(t *txn) (store.Record, bool, error)
}

// txn is a transaction, and the connection that it is on.
type txn struct {
	p      *process
	client int8
	key    int8
	req    store.ClaimRequest
	made   made // its effect
	wrote  bool

	base store.Record // what the record was when it began
	open bool         // it holds the key
	over bool         // committed or rolled back, or never to begin
	end  chan struct{}
}

var (
	errAborted = errors.New("simulate: the transaction has been rolled back")
	errTaken   = errors.New("simulate: the record has changed since the transaction began; it has been rolled back")
)

// server is the database without a defect: a memory store with a lock for each
// key. While a transaction runs, the memory store knows nothing of it.
type server struct{ w *world }

func (s server) enter(t *txn) (store.Record, error) {
	w := s.w
	if t.over {
		return store.Record{}, errAborted // its client has hung up
	}
	rec := w.look(int(t.key)).rec
	switch holder := w.txns[t.key]; {
	case rec.State != store.None && rec.Fingerprint != t.req.Fingerprint:
		return rec, store.ErrMismatch
	case rec.State == store.Running && rec.LeaseLeft <= 0:
		return w.store.Claim(t.p.ctx, t.req) // which marks it unknown
	case rec.State != store.None && (rec.State != store.Retryable || rec.Owner == t.req.Owner):
		return rec, nil
	case holder != nil:
		return store.Record{ID: t.req.ID, Scope: t.req.Scope, State: store.Running, Fingerprint: holder.req.Fingerprint, InTx: true}, nil
	}
	w.hold(t)
	t.base, t.end = rec, make(chan struct{})
	// The memory store gives out a fence only with a claim, so the record may
	// get a greater one when it is written.
	return store.Record{ID: t.req.ID, Scope: t.req.Scope, State: store.Running, Fingerprint: t.req.Fingerprint, Owner: t.req.Owner,
		Fence: rec.Fence + 1, Attempt: rec.Attempt + 1, LeaseLeft: t.req.Lease}, nil
}

func (s server) write(t *txn) error {
	if !t.open {
		return errAborted
	}
	t.wrote = true
	return nil
}

func (s server) commit(t *txn, out store.Settlement, keep store.Retention) error {
	if !t.open {
		return errAborted
	}
	s.w.let(t)
	if now := s.w.look(int(t.key)).rec; now.State != t.base.State || now.Fence != t.base.Fence {
		return errTaken
	}
	return s.w.writeDown(t, out, keep)
}

func (s server) abort(t *txn) {
	if t.open {
		s.w.count.RolledBack++
	}
	s.w.let(t)
}

func (s server) look(t *txn) (store.Record, bool, error) {
	if t.open {
		return store.Record{}, false, nil
	}
	t.over = true // later calls come too late
	return s.w.look(int(t.key)).rec, true, nil
}

// hold gives t the lock of its key.
func (w *world) hold(t *txn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.open = true
	w.txns[t.key] = t
}

// let has t release it, for good.
func (w *world) let(t *txn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.open {
		close(t.end)
		w.judge.transact(t, 0, time.Since(w.start))
	}
	t.open, t.over = false, true
	if w.txns[t.key] == t {
		w.txns[t.key] = nil
	}
}

// writeDown writes the record and the effect of t.
func (w *world) writeDown(t *txn, out store.Settlement, keep store.Retention) error {
	rec, err := w.truth.Claim(context.Background(), t.req)
	if err == nil && (rec.State != store.Running || rec.Owner != t.req.Owner) {
		err = fmt.Errorf("%w: it is %v", errTaken, rec.State)
	}
	if err == nil {
		err = w.truth.Settle(context.Background(), rec.Claim(), out, keep)
	}
	if err != nil {
		return err
	}
	w.count.Commits++
	if t.wrote {
		t.made.fence = rec.Fence
		l := &w.ledgers[t.key]
		l.made = append(l.made, t.made)
		w.count.Effects++
	}
	return nil
}
