package simulate

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// flawed is a memory store with a defect.
type flawed struct {
	*memory.Store
	clock  *Clock
	defect string
}

func (f flawed) is(defect string) bool { return f.defect == defect }

func (f flawed) record(id store.ID) store.Record {
	rec, err := f.Read(context.Background(), id)
	if err != nil {
		panic(err)
	}
	return rec
}

// newest is the claim c with the fence that the store would accept.
func (f flawed) newest(c store.Claim) store.Claim {
	c.Fence = f.record(c.ID).Fence
	return c
}

func (f flawed) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if f.is("confuses keys") {
		req.ID = ids[0]
	}
	before := f.record(req.ID)
	if f.is("judges leases by the caller's clock") {
		f.clock.Skew = time.Duration(ProcessOf(ctx)) * 2 * quantum
		defer func() { f.clock.Skew = 0 }()
	}
	asked := req.Fingerprint
	if f.is("checks no fingerprint while running") && before.State == store.Running {
		req.Fingerprint = before.Fingerprint
	}
	owner := req.Owner
	if f.is("grants an owner twice") && before.State == store.Retryable && before.Owner == owner {
		req.Owner = store.NewOwner()
	}
	rec, err := f.Store.Claim(ctx, req)
	switch {
	case err != nil:
		return rec, err
	case f.is("checks no fingerprint while running"):
		rec.Fingerprint = asked
	case f.is("grants an owner twice") && rec.Owner == req.Owner:
		rec.Owner = owner
	case f.is("claims without the existence check") && rec.State == store.Running:
		rec.Owner = req.Owner
	case f.is("runs expired claims again") && before.State == store.Running && rec.State == store.Unknown:
		if err := f.Store.Release(ctx, rec.Claim(), store.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
			return rec, err
		}
		return f.Store.Claim(ctx, req)
	}
	return rec, nil
}

func (f flawed) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	claims = slices.Clone(claims)
	for i, c := range claims {
		if f.is("extends without the fence check") {
			claims[i] = f.newest(c)
		}
	}
	return f.Store.Extend(ctx, claims, lease)
}

func (f flawed) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	switch {
	case f.is("settles without the fence check"):
		c = f.newest(c)
	case f.is("acknowledges before it writes"):
		return nil
	case f.is("forgets settled records"):
		keep = store.Retention{Result: time.Nanosecond, Tombstone: time.Nanosecond}
	case f.is("drops results"):
		keep.Result = time.Nanosecond
	}
	err := f.Store.Settle(ctx, c, out, keep)
	if f.is("takes a refused outcome for a repeated one") && stet.KindOf(err) == stet.KindFenced && f.record(c.ID).Fence == c.Fence {
		return nil
	}
	return err
}

func (f flawed) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	if f.is("releases without the fence check") {
		c = f.newest(c)
	}
	return f.Store.Release(ctx, c, keep)
}

func (f flawed) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	if f.is("never marks unknown") {
		return store.Swept{}, nil
	}
	if f.is("sweeps live claims") {
		f.clock.Skew = lease
		defer func() { f.clock.Skew = 0 }()
	}
	swept, err := f.Store.Sweep(ctx, limit)
	for _, id := range ids {
		if rec := f.record(id); f.is("sweeps expired runs into retryable") && rec.State == store.Unknown {
			err = errors.Join(err, f.Store.Release(ctx, rec.Claim(), store.Retention{Result: time.Hour, Tombstone: time.Hour}))
		}
	}
	return swept, err
}

// defects are what must be found, each within so many seeds.
var defects = []struct {
	defect string
	within uint64
}{
	{"claims without the existence check", 100},
	{"checks no fingerprint while running", 500},
	{"judges leases by the caller's clock", 500},
	{"runs expired claims again", 200},
	{"grants an owner twice", 5000},
	{"confuses keys", 500},
	{"settles without the fence check", 5000},
	{"releases without the fence check", 5000},
	{"extends without the fence check", 5000},
	{"acknowledges before it writes", 100},
	{"takes a refused outcome for a repeated one", 5000},
	{"forgets settled records", 100},
	{"drops results", 100},
	{"never marks unknown", 500},
	{"sweeps live claims", 200},
	{"sweeps expired runs into retryable", 200},
}

func TestDefectsAreFoundAndShrink(t *testing.T) {
	for _, d := range defects {
		t.Run(d.defect, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seek(t, Config{Store: func(m *memory.Store, clock *Clock) store.Store { return flawed{m, clock, d.defect} }}, d.within, fewSteps)
			})
		})
	}
}

// fewSteps are as many as a simple defect takes.
const fewSteps = 20

func seek(t *testing.T, c Config, within uint64, steps int) {
	for seed := range within {
		r := Run(seed, c)
		if r.Violation == "" {
			continue
		}
		if raceDetector { // see TestSeedReplaysExactly
			return
		}
		if again := Run(seed, c); again.Hash != r.Hash || again.Violation != r.Violation {
			t.Errorf("seed %d found %q, and then %q", seed, r.Violation, again.Violation)
		}
		short := Shrink(r, c)
		if short.Violation != r.Violation {
			t.Fatalf("shrunk from %q to %q", r.Violation, short.Violation)
		}
		if len(short.script) > steps {
			t.Errorf("%d steps are left of %d; this defect takes %d at most", len(short.script), len(r.script), steps)
		}
		if fixed := replay(seed, short.setup, short.script, Config{Transactions: c.Transactions, Work: c.Work}); fixed.Violation != "" {
			t.Errorf("without the defect the same schedule breaks a promise, too: %v", fixed)
		}
		t.Logf("found by seed %d in %d steps, which shrink to these:\n%v", seed, len(r.script), short)
		return
	}
	t.Errorf("not found by %d seeds", within)
}
