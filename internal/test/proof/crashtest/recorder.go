package crashtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// recorder is a store whose calls are in the history.
type recorder struct {
	store.Store
	h *History
}

// txRecorder is a recorder of a store with transactions.
type txRecorder[Tx any] struct {
	recorder
	tx store.TxStore[Tx]
}

// Record is a store whose calls are in the history.
func Record(store store.Store, h *History) store.Store { return &recorder{store, h} }

// Recorded is a store with transactions whose calls are in the history, if there
// is one.
func Recorded[Tx any](store store.TxStore[Tx], h *History) store.TxStore[Tx] {
	if h == nil {
		return store
	}
	return &txRecorder[Tx]{recorder{store, h}, store}
}

var errCannotTell = errors.New("this store cannot tell when a record changes")

// Watch implements store.Watcher. Waiters poll where the store is none.
func (r *recorder) Watch(ctx context.Context, id store.ID, fence int64) error {
	if w, ok := r.Store.(store.Watcher); ok {
		return w.Watch(ctx, id, fence)
	}
	return errCannotTell
}

// Sweep implements store.Sweeper.
func (r *recorder) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	if s, ok := r.Store.(store.Sweeper); ok {
		return s.Sweep(ctx, limit)
	}
	return store.Swept{}, nil
}

// Claim implements store.Store.
func (r *recorder) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	end := r.h.Begin(requested(verbClaim, req))
	rec, err := r.Store.Claim(ctx, req)
	end(answered(rec, err))
	return rec, err
}

// Extend implements store.Store. It is in the history as one call for each claim.
func (r *recorder) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	ends := make(map[store.Claim]func(Event), len(claims))
	for _, c := range claims {
		ev := about(verbExtend, c)
		ev.Lease = int64(lease)
		ends[c] = r.h.Begin(ev)
	}
	lost, err := r.Store.Extend(ctx, claims, lease)
	for _, c := range lost {
		if end := ends[c]; end != nil && err == nil {
			end(Event{Kind: Fail, Why: whyFenced})
			delete(ends, c)
		}
	}
	for _, end := range ends {
		end(written(err))
	}
	return lost, err
}

// Settle implements store.Store.
func (r *recorder) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	ev := about(verbSettle, c)
	ev.State, ev.Digest = out.State.String(), Digest(out.Result.Marshal())
	end := r.h.Begin(ev)
	err := r.Store.Settle(ctx, c, out, keep)
	end(written(err))
	return err
}

// Release implements store.Store.
func (r *recorder) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	end := r.h.Begin(about(verbRelease, c))
	err := r.Store.Release(ctx, c, keep)
	end(written(err))
	return err
}

// Read implements store.Store.
func (r *recorder) Read(ctx context.Context, id store.ID) (store.Record, error) {
	end := r.h.Begin(Event{Verb: verbRead, ID: id.String()})
	rec, err := r.Store.Read(ctx, id)
	end(answered(rec, err))
	return rec, err
}

// RunTx implements store.TxStore. What would be committed is in the history
// before it is.
func (r *txRecorder[Tx]) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	end := r.h.Begin(requested(verbTransact, req))
	rec, err := r.tx.RunTx(ctx, req, keep, func(ctx context.Context, tx Tx, rec store.Record) (store.Settlement, error) {
		out, err := fn(ctx, tx, rec)
		if err == nil {
			r.h.Add(Event{Kind: Intent, Verb: verbTransact, ID: req.ID.String(), Owner: req.Owner.String(), Fence: rec.Fence,
				Attempt: rec.Attempt, State: out.State.String(), Digest: Digest(out.Result.Marshal())})
		}
		return out, err
	})
	last := answered(rec, err)
	if last.Kind == Unsure && stet.KindOf(err) != stet.KindUnknown {
		last.Kind, last.Why = Fail, whyNothing
	}
	end(last)
	return rec, err
}

// SettleTx implements store.TxStore.
func (r *txRecorder[Tx]) SettleTx(ctx context.Context, tx Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return r.tx.SettleTx(ctx, tx, c, out, keep)
}

func requested(verb string, req store.ClaimRequest) Event {
	return Event{Verb: verb, ID: req.ID.String(), Owner: req.Owner.String(), Fingerprint: req.Fingerprint.String(), Lease: int64(req.Lease)}
}

func about(verb string, c store.Claim) Event {
	return Event{Verb: verb, ID: c.ID.String(), Owner: c.Owner.String(), Fence: c.Fence}
}

// answered is the end of a call that returns a record.
func answered(rec store.Record, err error) Event {
	if err != nil {
		return written(err)
	}
	return Seen(OK, rec)
}

// Seen is a record as an event.
func Seen(kind Kind, rec store.Record) Event {
	return Event{Kind: kind, State: rec.State.String(), Owner: rec.Owner.String(), Fence: rec.Fence, Attempt: rec.Attempt,
		Fingerprint: rec.Fingerprint.String(), Digest: Digest(rec.Result.Marshal())}
}

// written is the end of a call that returns an error or nothing.
func written(err error) Event {
	switch {
	case err == nil:
		return Event{Kind: OK}
	case stet.KindOf(err) == stet.KindMismatch:
		return Event{Kind: Fail, Why: whyMismatch}
	case stet.KindOf(err) == stet.KindFenced:
		return Event{Kind: Fail, Why: whyFenced}
	case stet.KindOf(err) == stet.KindInvalid:
		return Event{Kind: Fail, Why: whyNothing}
	}
	return Event{Kind: Unsure}
}

// Digest names bytes shortly; "" if there are none.
func Digest(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}
