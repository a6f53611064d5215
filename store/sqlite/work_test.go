package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// After each call, the store returns the same as the reference.
func TestStoreAgreesWithTheReference(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			clock := newClock()
			h := &history{t: t, rand: rand.New(rand.NewPCG(seed, 7)), clock: clock,
				mine: openStore(t, Options{Clock: clock.Now}), theirs: memory.New(memory.Options{Clock: clock.Now})}
			for range 150 {
				if h.step(); t.Failed() {
					return
				}
			}
		})
	}
}

// worker is what both stores are.
type worker interface {
	store.WorkStore
	store.OutboxStore
}

type history struct {
	t            *testing.T
	rand         *rand.Rand
	clock        *fakeClock
	mine, theirs worker
	owners       []store.Owner
	fences       [][2]int64 // that were granted, of both
	log          []string
}

// both calls do for both stores, and compares the results.
func (h *history) both(what string, do func(s worker, fence func([2]int64) int64) ([]store.Record, error)) {
	h.t.Helper()
	h.log = append(h.log, what)
	mine, err := do(h.mine, func(f [2]int64) int64 { return f[0] })
	theirs, theirErr := do(h.theirs, func(f [2]int64) int64 { return f[1] })
	for _, sentinel := range []error{store.ErrFenced, store.ErrMismatch, nil} {
		if errors.Is(err, sentinel) != errors.Is(theirErr, sentinel) {
			h.t.Fatalf("%q\nsays %v, and the reference %v", h.last(), err, theirErr)
		}
	}
	if len(mine) != len(theirs) {
		h.t.Fatalf("%q\nreturned %d records, and the reference %d", h.last(), len(mine), len(theirs))
	}
	for i := range mine {
		if mine[i].State != store.None {
			h.fences = append(h.fences, [2]int64{mine[i].Fence, theirs[i].Fence})
		}
		a, b := plain(mine[i]), plain(theirs[i])
		if !reflect.DeepEqual(a, b) {
			h.t.Fatalf("%q\nreturned\n%+v, and the reference\n%+v", h.last(), a, b)
		}
	}
}

// last is the last call.
func (h *history) last() []string { return h.log[max(0, len(h.log)-15):] }

// plain is rec without what may differ: fences, and how a time or nothing is
// written down.
func plain(rec store.Record) store.Record {
	rec.Fence = 0
	for _, at := range []*time.Time{&rec.ClaimedAt, &rec.SettledAt, &rec.ExpiresAt, &rec.ForgetAt} {
		if *at = at.UTC().Round(0); at.Year() < 2000 {
			*at = time.Time{}
		}
	}
	for _, b := range []*[]byte{&rec.Result.Body, &rec.Work, &rec.Outbox, &rec.Notes.Data} {
		if len(*b) == 0 {
			*b = nil
		}
	}
	return rec
}

func pick[T any](h *history, of ...T) T { return of[h.rand.IntN(len(of))] }

// handed drops what Due may leave out, and the order of those due at one moment.
func handed(recs []store.Record, err error) ([]store.Record, error) {
	for i := range recs {
		recs[i].Notes, recs[i].Cancelling = store.Notes{}, false
	}
	slices.SortFunc(recs, func(a, b store.Record) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return recs, err
}

func alone(rec store.Record, err error) ([]store.Record, error) { return []store.Record{rec}, err }

// step does one thing to one of three keys.
func (h *history) step() {
	ctx := h.t.Context()
	key := pick(h, "a", "b", "c")
	req := request(key)
	if h.rand.IntN(10) == 0 {
		req.Fingerprint = stet.NewFingerprint([]byte("another"))
	}
	if len(h.owners) > 0 && h.rand.IntN(4) == 0 {
		req.Owner = pick(h, h.owners...)
	}
	h.owners = append(h.owners, req.Owner)
	var fence [2]int64
	if n := len(h.fences); n > 0 {
		fence = h.fences[max(0, n-1-h.rand.IntN(6))]
	}
	claim := func(f func([2]int64) int64) store.Claim { return store.Claim{ID: req.ID, Fence: f(fence)} }
	wait := pick(h, 0, 0, time.Minute, time.Hour)
	out := store.Settlement{State: pick(h, store.Completed, store.Failed), Result: store.Result{Body: []byte(pick(h, "x", "y"))}}
	if h.rand.IntN(5) == 0 {
		out.Result, out.Gone = store.Result{}, true
	}
	if h.rand.IntN(3) == 0 {
		out.Outbox = []byte("messages")
	}
	notes := store.Notes{Version: pick(h, uint64(1), 2, 3), Data: []byte(pick(h, "n", "m"))}
	keep := store.Retention{Result: pick(h, time.Minute, time.Hour), Tombstone: 2 * time.Hour}
	type fencer = func([2]int64) int64
	verb := h.rand.IntN(18)
	what := fmt.Sprint(verb, key, " fence ", fence, " wait ", wait)
	h.both(what, func(s worker, f fencer) ([]store.Record, error) {
		switch verb {
		case 0:
			return alone(s.Claim(ctx, req))
		case 1, 2, 3:
			return alone(s.Accept(ctx, req, []byte("work"), wait))
		case 4, 5, 6:
			return alone(s.Take(ctx, store.TakeRequest{ID: req.ID, Owner: req.Owner, Lease: time.Minute}))
		case 7, 8:
			return nil, s.Return(ctx, claim(f), wait)
		case 9:
			return nil, s.Release(ctx, claim(f), keep)
		case 10:
			return nil, s.Settle(ctx, claim(f), out, keep)
		case 11:
			out.State = store.Failed
			return alone(s.Cancel(ctx, claim(f), out, keep))
		case 12:
			return nil, s.Save(ctx, claim(f), notes, false)
		case 13:
			return nil, s.Relayed(ctx, claim(f), keep)
		case 14:
			return handed(s.Due(ctx, 3, time.Minute))
		case 15:
			return handed(s.DueMessages(ctx, 3, time.Minute))
		case 16:
			_, err := s.(store.Sweeper).Sweep(ctx, 100)
			return nil, err
		default:
			return nil, nil
		}
	})
	if verb == 17 {
		h.clock.Advance(pick(h, time.Second, 40*time.Second, 50*time.Minute))
	}
	h.compare()
}

// compare reads all records of both stores.
func (h *history) compare() {
	ctx := h.t.Context()
	for _, k := range []string{"a", "b", "c"} {
		id := request(k).ID
		h.both("look "+k, func(s worker, _ func([2]int64) int64) ([]store.Record, error) { return alone(s.Look(ctx, id)) })
		h.both("read "+k, func(s worker, _ func([2]int64) int64) ([]store.Record, error) { return alone(s.Read(ctx, id)) })
		h.log = h.log[:len(h.log)-2]
	}
}
