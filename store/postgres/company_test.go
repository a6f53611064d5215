package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// replaying is a store whose transactions nearly all find a settled record, several at a time.
func replaying(t *testing.T) *Store {
	t.Helper()
	s := ledger(t, Options{})
	s.company.share.Store(ofShare)
	s.company.looking.Store(fewLook)
	return s
}

func never(t *testing.T) function {
	return func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
		t.Error("it ran twice")
		return completed("twice"), nil
	}
}

func TestReplaysInCompanyTakeNoConnectionOfTheServices(t *testing.T) {
	s := replaying(t)
	req := request("k")
	if rec, err := s.RunTx(t.Context(), req, keep, charge); err != nil || rec.State != store.Completed {
		t.Fatalf("a new one: %+v, %v", rec, err)
	}
	before := s.Pool().Stat().AcquireCount()
	req.Owner = store.NewOwner()
	if rec, err := s.RunTx(t.Context(), req, keep, never(t)); err != nil || rec.State != store.Completed || string(rec.Result.Body) != "charged" {
		t.Errorf("a replay: %+v, %v", rec, err)
	}
	other := req
	other.Fingerprint = stet.NewFingerprint([]byte("something else"))
	if rec, err := s.RunTx(t.Context(), other, keep, never(t)); !errors.Is(err, store.ErrMismatch) || rec.State != store.Completed {
		t.Errorf("with another fingerprint: %+v, %v", rec, err)
	}
	if n := s.Pool().Stat().AcquireCount() - before; n != 0 {
		t.Errorf("they took %d connections of the service's", n)
	}
	if n := charges(t, s); n != 1 {
		t.Errorf("%d charges; want 1", n)
	}
}

// Only what is settled is decided in company.
func TestWhatIsNotSettledEntersAsEver(t *testing.T) {
	s := replaying(t)
	_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, rec store.Record) (store.Settlement, error) {
		if got, err := s.RunTx(ctx, request("k"), keep, never(t)); err != nil || got.State != store.Running || !got.InTx {
			t.Errorf("in flight: %+v, %v", got, err)
		}
		return charge(ctx, tx, rec)
	})
	if err != nil {
		t.Error(err)
	}
	again := request("released")
	if err := s.Release(t.Context(), mustClaim(t, s, again).Claim(), keep); err != nil {
		t.Fatal(err)
	}
	again.Owner = store.NewOwner()
	if rec, err := s.RunTx(t.Context(), again, keep, charge); err != nil || rec.State != store.Completed || rec.Attempt != 2 {
		t.Errorf("released: %+v, %v", rec, err)
	}
	execSQL(t, s.Pool(), "UPDATE stet.records SET forget_at = now() - interval '1 second' WHERE id = $1", again.ID[:])
	again.Owner = store.NewOwner()
	if rec, err := s.RunTx(t.Context(), again, keep, charge); err != nil || rec.State != store.Completed || rec.Attempt != 1 {
		t.Errorf("forgotten: %+v, %v", rec, err)
	}
	if n := charges(t, s); n != 3 {
		t.Errorf("%d charges; want 3", n)
	}
}

// The store's own connections fail: the transaction looks by itself, and so do the next ones.
func TestLookInCompanyFailsAlone(t *testing.T) {
	s := replaying(t)
	req := request("k")
	if _, err := s.RunTx(t.Context(), req, keep, charge); err != nil {
		t.Fatal(err)
	}
	s.reads.close()
	req.Owner = store.NewOwner()
	if rec, err := s.RunTx(t.Context(), req, keep, never(t)); err != nil || rec.State != store.Completed {
		t.Errorf("%+v, %v", rec, err)
	}
	if s.company.pays() || s.company.share.Load() > ofShare/32 {
		t.Error("the next one looks in company again")
	}
}

// A round trip more for what is new is paid only where nearly nothing is, and several look at a time.
func TestWhereMuchIsNewEachLooksByItself(t *testing.T) {
	var c company
	for range 200 {
		c.saw(true)
	}
	if c.pays() {
		t.Error("one alone looks in company")
	}
	if c.looking.Store(fewLook + 1); !c.pays() {
		t.Error("replays do not look in company")
	}
	for range 8 {
		c.saw(false)
	}
	if c.pays() {
		t.Error("they still do where several were new")
	}
}
