package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// replaying is a store whose last transactions have all found a settled record.
func replaying(t *testing.T) *Store {
	t.Helper()
	s := ledger(t, Options{})
	s.txReplay.share.Store(1000)
	return s
}

func TestReplaysTakeNoConnectionOfTheServices(t *testing.T) {
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

// A record that is not settled is read again in the transaction.
func TestReadFirstDecidesOnlyReplays(t *testing.T) {
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

// The store's own connections fail: the transaction reads the record itself, and so do the next ones.
func TestReadFirstMayFail(t *testing.T) {
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
	if s.txReplay.high() {
		t.Error("the next one reads first again")
	}
}

// A first request costs one more round trip while transactions read first.
func TestFewNewKeysEndReadingFirst(t *testing.T) {
	s := open(t, nil, Options{})
	for range 200 {
		s.txReplay.add(1, 1)
	}
	if !s.txReplay.high() {
		t.Error("replays do not read first")
	}
	for range 8 {
		s.txReplay.add(0, 1)
	}
	if s.txReplay.high() {
		t.Error("they still do after several new keys")
	}
}
