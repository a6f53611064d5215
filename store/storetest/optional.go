package storetest

import (
	"context"
	"runtime"
	"time"

	"github.com/stet-go/stet/store"
)

var watchChecks = []check{
	{"a watcher is woken when the run ends", "without it a waiter sleeps past the outcome.",
		watchIsWoken},
	{"a watcher of something that does not run returns at once", "the record may have changed between the claim that was refused and the watch.",
		watchReturnsAtOnce},
	{"a watcher leaves when its context ends, and changes nothing", "waiters come and go by the thousand.",
		watchChangesNothing},
}

// woken requires that done be closed soon.
func (f *fixture) woken(what string, done <-chan error) {
	f.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		f.Fatalf("%s: Watch had not returned after %v", what, patience)
	}
}

func (f *fixture) watch(ctx context.Context, id store.ID, fence int64) <-chan error {
	begun, done := make(chan struct{}), make(chan error, 1)
	go func() {
		close(begun)
		done <- f.can.watcher.Watch(ctx, id, fence)
	}()
	<-begun
	return done
}

func watchIsWoken(f *fixture) {
	ends := map[string]func(store.ClaimRequest, store.Claim){
		"completed": func(_ store.ClaimRequest, c store.Claim) { f.settle(c, completed("x"), f.keep) },
		"failed":    func(_ store.ClaimRequest, c store.Claim) { f.settle(c, failed("x"), f.keep) },
		"released":  func(_ store.ClaimRequest, c store.Claim) { f.release(c, f.keep) },
		"released and claimed again": func(req store.ClaimRequest, c store.Claim) {
			f.release(c, f.keep)
			f.grant(byAnother(req))
		},
		"unknown": func(req store.ClaimRequest, c store.Claim) {
			f.extend(f.unit, c)
			f.pass(1)
			f.claim(byAnother(req))
		},
	}
	for name, end := range ends {
		ctx, cancel := context.WithTimeout(f.ctx, 2*patience)
		req := f.request(f.long)
		c := f.grant(req).Claim()
		var watchers []<-chan error
		for range 5 {
			watchers = append(watchers, f.watch(ctx, c.ID, c.Fence))
		}
		// The later they are woken the better, but any time will do: a watcher
		// that has not begun finds the record ended.
		for range 100 {
			f.read(c.ID)
			runtime.Gosched()
		}
		end(req, c)
		for _, done := range watchers {
			f.woken("a record that was "+name, done)
		}
		cancel()
	}
}

func watchReturnsAtOnce(f *fixture) {
	ctx, cancel := context.WithTimeout(f.ctx, 2*patience)
	defer cancel()
	for _, s := range f.situations() {
		if s.state == store.Running {
			f.woken("an older fence of a key that is "+s.name, f.watch(ctx, s.req.ID, s.stale.Fence))
			continue
		}
		f.woken("a key that is "+s.name, f.watch(ctx, s.req.ID, s.claim.Fence))
		f.unchanged("Watch of a key that is "+s.name, s.rec)
	}
	f.woken("a key that was never claimed", f.watch(ctx, f.request(0).ID, 1))
}

func watchChangesNothing(f *fixture) {
	ctx, cancel := context.WithCancel(f.ctx)
	all := f.situations()
	var watchers []<-chan error
	for _, s := range all {
		for range 20 {
			watchers = append(watchers, f.watch(ctx, s.req.ID, s.claim.Fence))
		}
	}
	cancel()
	for _, done := range watchers {
		f.woken("a context that has ended", done)
	}
	for _, s := range all {
		f.unchanged("Watch of a key that is "+s.name, s.rec)
	}
}

var sweepChecks = []check{
	{"a sweep does due work only", "it marks expired runs unknown, turns expired results into tombstones and deletes records past their time; live claims, outcomes and unknown records stay.",
		sweepInEachSituation},
	{"a sweep is bounded, and reports when there is more", "a backlog must not become one long lock.",
		sweepIsBounded},
	{"sweepers do not count or do anything twice", "every process sweeps.",
		sweepTogether},
}

// sweepAll sweeps for as long as there is something to do, and a round more:
// where a sweep begins is the store's business.
func (f *fixture) sweepAll(s store.Sweeper) (sum store.Swept) {
	f.Helper()
	idle := 0
	for range 10_000 {
		got, err := s.Sweep(f.ctx, 100)
		if err != nil {
			f.Fatalf("Sweep: %v", err)
		}
		sum.MarkedUnknown += got.MarkedUnknown
		sum.Expired += got.Expired
		sum.Purged += got.Purged
		if got.More {
			continue
		}
		if idle++; idle == 2 {
			return sum
		}
	}
	f.Fatal("after 10,000 sweeps there is still more to look at")
	return sum
}

func sweepInEachSituation(f *fixture) {
	// Built by hand, because reading a situation may tidy it up.
	short := store.Retention{Result: f.unit / 2, Tombstone: f.keep.Tombstone}
	forget := store.Retention{Result: f.unit / 2, Tombstone: f.unit}
	made := make(map[string]store.Record)
	for name, do := range map[string]func(store.Claim){
		"live":      func(store.Claim) {},
		"lapsed":    func(c store.Claim) { f.extend(f.unit, c) },
		"renewed":   func(c store.Claim) { f.extend(f.unit, c); f.extend(f.long, c) },
		"completed": func(c store.Claim) { f.settle(c, completed("x"), f.keep) },
		"expired":   func(c store.Claim) { f.settle(c, failed("x"), short) },
		"forgotten": func(c store.Claim) { f.settle(c, completed("x"), forget) },
		"retryable": func(c store.Claim) { f.release(c, f.keep) },
		"released":  func(c store.Claim) { f.release(c, forget) },
	} {
		made[name] = f.grant(f.request(f.long))
		do(made[name].Claim())
	}
	f.pass(1)
	got := f.sweepAll(f.can.sweeper)
	// What a store expires and forgets by itself is not counted.
	if got.MarkedUnknown != 1 || got.Expired > 1 || got.Purged > 2 {
		f.Errorf("swept: %d marked unknown, %d expired, %d purged; want 1, and at most 1 and 2", got.MarkedUnknown, got.Expired, got.Purged)
	}
	want := map[string]store.State{"live": store.Running, "lapsed": store.Unknown, "renewed": store.Running, "completed": store.Completed,
		"expired": store.Failed, "forgotten": store.None, "retryable": store.Retryable, "released": store.None}
	for name, rec := range made {
		now := f.read(rec.ID)
		if now.State != want[name] || now.Gone != (name == "expired") {
			f.Errorf("after the sweep the record that was %s is %s; want it %v", name, show(now), want[name])
		}
		if now.State != store.None && (now.Fence != rec.Fence || now.Owner != rec.Owner || now.Fingerprint != rec.Fingerprint) {
			f.Errorf("the sweep changed the fence, owner or fingerprint of the record that was %s: %s", name, show(now))
		}
	}
	if now := f.read(made["completed"].ID); text(now.Result) != "x" {
		f.Errorf("the sweep took the result of a record before its time: %s", show(now))
	}
	f.settle(made["lapsed"].Claim(), completed("late"), f.keep) // no other run began
	if again := f.sweepAll(f.can.sweeper); again != (store.Swept{}) {
		f.Errorf("a second sweep did something again: %+v", again)
	}
}

func sweepIsBounded(f *fixture) {
	s := f.can.sweeper
	const n, limit = 60, 10
	for range n {
		f.grant(f.request(f.unit))
	}
	f.pass(1)
	got, err := s.Sweep(f.ctx, limit)
	if err != nil {
		f.Fatalf("Sweep: %v", err)
	}
	if got.MarkedUnknown > 2*limit || !got.More {
		f.Errorf("Sweep with a limit of %d, of %d expired leases: %+v; want about the limit marked unknown, and More", limit, n, got)
	}
	if rest := f.sweepAll(s); got.MarkedUnknown+rest.MarkedUnknown != n {
		f.Errorf("%d of %d records with expired leases were marked unknown", got.MarkedUnknown+rest.MarkedUnknown, n)
	}
}

func sweepTogether(f *fixture) {
	s := f.can.sweeper
	const n = 100
	live := f.grant(f.request(f.long))
	for range n {
		f.grant(f.request(f.unit))
	}
	f.pass(1)
	sums := make([]store.Swept, 4)
	race(len(sums), func(i int) {
		for range 3 * n {
			got, err := s.Sweep(f.ctx, 20)
			if err != nil {
				f.Errorf("Sweep beside others: %v", err)
				return
			}
			if sums[i].MarkedUnknown += got.MarkedUnknown; !got.More {
				return
			}
		}
	})
	sum := f.sweepAll(s).MarkedUnknown
	for _, got := range sums {
		sum += got.MarkedUnknown
	}
	if sum != n {
		f.Errorf("%d sweepers together say that they marked %d records unknown; there were %d", len(sums), sum, n)
	}
	f.unchanged("sweeping", live)
}
