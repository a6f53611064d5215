package postgres

import (
	"context"
	"testing"
	"time"
)

// TestBeginDoesNotTakeOverARecordThatChangedSince: another transaction has taken the released
// operation, for another request, and released it again.
func TestBeginDoesNotTakeOverARecordThatChangedSince(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	tx := beginTx(t, s)
	begun := mustBegin(t, tx, opOf("k", "a"), "run")
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_release($1)", begun.Claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	other, print := beginTx(t, s), opOf("k", "b").Fingerprint
	if _, err := other.Exec(t.Context(), "UPDATE stet.records SET fence = nextval('stet.records_fence'), fingerprint = $2 WHERE id = $1", idOf("k"), print[:]); err != nil {
		t.Fatal(err)
	}
	mustBegin(t, beginTx(t, s), opOf("k", "a"), "in_flight")
	mustCommit(t, other)
	mustBegin(t, beginTx(t, s), opOf("k", "a"), "mismatch")
}

// TestBeginDoesNotWaitForALateSettle: the claim of a service behind the sidecar has lapsed, or
// not yet, and is being settled in a transaction that has not ended.
func TestBeginDoesNotWaitForALateSettle(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	for key, settle := range map[string]string{
		"locked": "SELECT FROM stet.records WHERE id = $1 FOR UPDATE", "lapsed": "UPDATE stet.records SET ref = 'x' WHERE id = $1", "running": "UPDATE stet.records SET ref = 'x' WHERE id = $1",
	} {
		req := request(key)
		req.ID, req.Fingerprint = [32]byte(idOf(key)), opOf("", "a").Fingerprint
		mustClaim(t, s, req)
		execSQL(t, s.Pool(), "UPDATE stet.records SET outside = owner WHERE id = $1", req.ID[:])
		if key != "running" {
			execSQL(t, s.Pool(), "UPDATE stet.records SET lease_until = now() - interval '1 second' WHERE id = $1", req.ID[:])
		}
		late := beginTx(t, s)
		if _, err := late.Exec(t.Context(), settle, req.ID[:]); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		tx := beginTx(t, s)
		if got, err := sqlBegin(ctx, tx, opOf(key, "a")); err != nil || got.Action != "in_flight" {
			t.Errorf("%s: stet_begin in the meantime: %q, %v; want in_flight at once", key, got.Action, err)
		}
		_ = tx.Rollback(t.Context())
		mustCommit(t, late) // which settled nothing
		if key != "running" {
			mustBegin(t, beginTx(t, s), opOf(key, "a"), "run")
		}
	}
}
