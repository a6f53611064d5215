package tier_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/tier"
)

// stand is a tier whose parts a test can make fail.
type stand struct {
	*tier.Store
	client redis.Client
	front  *failingFront
	back   *failingBack
	flush  func()
}

// failingFront is Redis. If they are not nil, Relayed returns relayed, and Look calls look first.
type failingFront struct {
	*redis.Store
	relayed error
	look    func()
}

func (f *failingFront) Look(ctx context.Context, id store.ID) (store.Record, error) {
	if f.look != nil {
		f.look()
	}
	return f.Store.Look(ctx, id)
}

func (f *failingFront) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	if f.relayed != nil {
		return f.relayed
	}
	return f.Store.Relayed(ctx, c, keep)
}

// failingBack is SQLite. If they are not nil, read and insert are called before Read and RunTx.
type failingBack struct {
	*sqlite.Store
	read, insert func() error
}

func (b *failingBack) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if b.read != nil {
		if err := b.read(); err != nil {
			return store.Record{}, err
		}
	}
	return b.Store.Read(ctx, id)
}

func (b *failingBack) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	if b.insert != nil {
		if err := b.insert(); err != nil {
			return store.Record{}, err
		}
	}
	return b.Store.RunTx(ctx, req, keep, fn)
}

// newStand has a Redis server of its own, so that it can be flushed.
func newStand(t *testing.T, o tier.Options) *stand {
	t.Helper()
	client := dial(t, rig.NewRedis(t, rig.RedisOptions{}).Addr())
	s := &stand{client: client, front: &failingFront{Store: openRedis(t, client)}, back: &failingBack{Store: openSQLite(t)}}
	s.Store = over(t, s.front, s.back, o)
	s.flush = func() {
		if _, err := client.Do(t.Context(), "", "FLUSHALL"); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

var errDown = errors.New("the server is down")

func down() error { return errDown }

// byAnother is the same request by another caller.
func byAnother(req store.ClaimRequest) store.ClaimRequest {
	req.Owner = store.NewOwner()
	return req
}

// mustReplay requires that a claim return the outcome.
func (s *stand) mustReplay(t *testing.T, when string, req store.ClaimRequest, want string) {
	t.Helper()
	rec, err := s.Claim(t.Context(), byAnother(req))
	if err != nil || rec.State != store.Completed || string(rec.Result.Body) != want || string(rec.Result.Head) != "not an engine's" {
		t.Errorf("%s: Claim returned %v with the result %+v, %v; want the outcome %q", when, rec.State, rec.Result, err, want)
	}
}

func TestSettledRecordThatRedisLostIsReplayed(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("lost")
	c := mustClaim(t, s, req).Claim()
	mustSettle(t, s, c, "first")
	s.flush()
	s.mustReplay(t, "after a flush of Redis", req, "first")
	mustSettle(t, s, c, "first") // a repetition
	if err := s.Settle(t.Context(), c, completed("second"), keep); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Settle with another outcome: %v; want ErrFenced", err)
	}
	other := byAnother(req)
	other.Fingerprint[1]++
	if rec, err := s.Claim(t.Context(), other); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("another request with the key: %v, %v; want ErrMismatch", rec.State, err)
	}
	if rec := stettest.Read(t, s.front, req.ID); rec.State != store.None {
		t.Errorf("the claims that SQL refused left a record in Redis that is %v", rec.State)
	}
}

// A claim of another request is in Redis for a moment, until SQL refuses it.
func TestReplayIsNotRefusedBecauseOfAnotherRequest(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("beside")
	mustSettle(t, s, mustClaim(t, s, req).Claim(), "first")
	s.flush()
	other := byAnother(req)
	other.Fingerprint[1]++
	mustClaim(t, s.front, other)
	s.mustReplay(t, "beside a claim of another request", req, "first")
}

func TestClaimIsNotGrantedWithoutSQL(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("down")
	s.back.read = down
	if rec, err := s.Claim(t.Context(), req); !errors.Is(err, errDown) || rec.State != store.None {
		t.Errorf("Claim while SQL is down: %v, %v", rec.State, err)
	}
	s.back.read = nil
	mustClaim(t, s, req) // the same call again
}

func TestOutcomeIsInSQLBeforeItIsReturned(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("pending")
	c := mustClaim(t, s, req).Claim()
	s.back.insert = down
	if err := s.Settle(t.Context(), c, completed("first"), keep); !errors.Is(err, errDown) {
		t.Errorf("Settle while SQL is down: %v", err)
	}
	if rec, err := s.Claim(t.Context(), byAnother(req)); !errors.Is(err, errDown) || rec.State != store.None {
		t.Errorf("Claim returned an outcome that SQL does not have: %v, %v", rec.State, err)
	}
	if rec, err := s.Read(t.Context(), req.ID); !errors.Is(err, errDown) || rec.State != store.None {
		t.Errorf("Read returned an outcome that SQL does not have: %v, %v", rec.State, err)
	}
	s.back.insert = nil
	s.mustReplay(t, "when SQL is up", req, "first")
	s.flush()
	s.mustReplay(t, "after a flush of Redis", req, "first")
}

func TestSweepWritesPendingOutcomesToSQL(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("swept")
	c := mustClaim(t, s, req).Claim()
	s.back.insert = down
	_ = s.Settle(t.Context(), c, completed("first"), keep)
	s.back.insert = nil
	if _, err := s.Sweep(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if rec := mustRead(t, s.back, req.ID); rec.State != store.Completed || rec.Owner != req.Owner || string(rec.Result.Head) != "not an engine's" {
		t.Errorf("after a sweep, SQL has a record that is %v, with the head %q", rec.State, rec.Result.Head)
	}
}

func TestSettleThatRedisDidNotConfirmIsReplayed(t *testing.T) {
	s := newStand(t, tier.Options{Hot: time.Millisecond})
	req := request("unconfirmed")
	c := mustClaim(t, s, req).Claim()
	s.front.relayed = errDown
	mustSettle(t, s, c, "first")
	s.mustReplay(t, "with a pending outcome that SQL has", req, "first")
	s.front.relayed = nil
	if _, err := s.Sweep(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	stettest.Eventually(t, "the outcome to leave Redis", func() bool { return mustRead(t, s.front, req.ID).State == store.None })
	s.mustReplay(t, "from SQL", req, "first")
}

func TestOutcomeLeavesRedisAndStaysInSQL(t *testing.T) {
	s := newStand(t, tier.Options{Hot: time.Millisecond})
	req := request("cold")
	c := mustClaim(t, s, req).Claim()
	mustSettle(t, s, c, "first")
	stettest.Eventually(t, "the outcome to leave Redis", func() bool { return mustRead(t, s.front, req.ID).State == store.None })
	s.mustReplay(t, "from SQL", req, "first")
	mustSettle(t, s, c, "first") // a repetition under the claim's own fence
	if err := s.Expire(t.Context(), mustRead(t, s, req.ID).Claim()); err != nil {
		t.Errorf("Expire: %v", err)
	}
	if rec := mustRead(t, s, req.ID); !rec.Gone {
		t.Errorf("after Expire the record is %v with a result", rec.State)
	}
}

func TestHotReplayNeedsNoSQL(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("hot")
	mustSettle(t, s, mustClaim(t, s, req).Claim(), "first")
	s.back.read, s.back.insert = down, down
	s.mustReplay(t, "while SQL is down", req, "first")
}

func TestFenceGrowsWhenRedisLostTheClaim(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("fence")
	first := mustClaim(t, s, req)
	s.flush()
	next := byAnother(req)
	if second := mustClaim(t, s, next); second.Fence <= first.Fence {
		t.Errorf("after Redis lost the claim with fence %d, the next has %d", first.Fence, second.Fence)
	}
	if err := s.Settle(t.Context(), first.Claim(), completed("zombie"), keep); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Settle under the lost claim: %v; want ErrFenced", err)
	}
	if rec := mustRead(t, s.back, req.ID); rec.State != store.None {
		t.Errorf("the stale settle wrote a record to SQL that is %v", rec.State)
	}
}

// The first run has settled in Redis, which loses that before SQL has it. Another run begins, and
// the outcome of the first one reaches SQL before the second one settles.
func TestTwoRunsAfterALossHaveOneOutcome(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("twice")
	next := byAnother(req)
	first := mustClaim(t, s, req)
	var second store.Record
	s.back.insert = func() error {
		s.back.insert = nil
		s.flush()
		second = mustClaim(t, s, next)
		return nil
	}
	mustSettle(t, s, first.Claim(), "first")
	if err := s.Settle(t.Context(), second.Claim(), completed("second"), keep); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Settle by the second run: %v; want ErrFenced", err)
	}
	s.mustReplay(t, "after both runs", req, "first")
	if rec := mustRead(t, s, req.ID); string(rec.Result.Body) != "first" {
		t.Errorf("Read returns the result %q", rec.Result.Body)
	}
}

func TestUnknownRunDoesNotHideAnOutcomeInSQL(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("unknown")
	next := byAnother(req)
	next.Lease = time.Millisecond
	first := mustClaim(t, s, req)
	s.back.insert = func() error {
		s.back.insert = nil
		s.flush()
		mustClaim(t, s, next)
		return nil
	}
	mustSettle(t, s, first.Claim(), "first")
	stettest.Eventually(t, "the second run's lease to expire", func() bool { return mustRead(t, s.front, req.ID).LeaseLeft <= 0 })
	s.mustReplay(t, "when the second run is unknown", req, "first")
}

func TestNewRefuses(t *testing.T) {
	file := openSQLite(t)
	claims := openRedis(t, dial(t, rig.Redis(t).Addr()))
	for name, c := range map[string]struct {
		claims   store.Store
		outcomes store.TxStore[*sql.Tx]
		o        tier.Options
	}{
		"one store in both places":     {file, file, tier.Options{}},
		"two stores with transactions": {openSQLite(t), file, tier.Options{}},
		"a store in front of another":  {wrapper{claims}, file, tier.Options{}},
		"no claims":                    {nil, file, tier.Options{}},
		"no outcomes":                  {claims, nil, tier.Options{}},
		"too few abilities":            {struct{ store.Store }{claims}, file, tier.Options{}},
		"a negative Hot":               {claims, file, tier.Options{Hot: -1}},
		"a Hot above a day":            {claims, file, tier.Options{Hot: 25 * time.Hour}},
	} {
		if _, err := tier.New(c.claims, c.outcomes, c.o); err == nil {
			t.Errorf("New accepted %s", name)
		}
	}
	if _, err := tier.New(claims, file, tier.Options{}); err != nil {
		t.Errorf("New refused Redis before SQLite: %v", err)
	}
}

type wrapper struct{ *redis.Store }

func (w wrapper) Unwrap() store.Store { return w.Store }

func TestMessagesAreRefused(t *testing.T) {
	s := newStand(t, tier.Options{})
	c := mustClaim(t, s, request("emits")).Claim()
	out := completed("x")
	out.Outbox = []byte("message")
	if err := s.Settle(t.Context(), c, out, keep); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("Settle with messages: %v; want ErrInvalid", err)
	}
}
