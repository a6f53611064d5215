package stettest

import (
	"context"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// Keep is how long the results of what these functions settle are kept.
var Keep = store.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}

// Request is a claim of a key in the scope "test", by a new owner.
func Request(key string) store.ClaimRequest {
	return store.ClaimRequest{
		ID: store.Digest("", "test", key), Scope: store.DigestScope("", "test"),
		Fingerprint: stet.NewFingerprint([]byte(key)), Owner: store.NewOwner(), Lease: time.Minute,
	}
}

// Completed is a settlement with a result, which no engine can read.
func Completed(result string) store.Settlement {
	return store.Settlement{State: store.Completed, Result: store.Result{Head: []byte("not an engine's"), Body: []byte(result)}}
}

// Claim claims; the claim must be granted.
func Claim(t testing.TB, s store.Store, req store.ClaimRequest) store.Record {
	t.Helper()
	rec, err := s.Claim(context.Background(), req)
	if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
		t.Fatalf("Claim: got %+v, %v; want it granted to %x", rec, err, req.Owner)
	}
	return rec
}

// Settle settles a claim as completed.
func Settle(t testing.TB, s store.Store, c store.Claim, result string) {
	t.Helper()
	if err := s.Settle(context.Background(), c, Completed(result), Keep); err != nil {
		t.Fatalf("Settle: %v", err)
	}
}

// Read returns a record.
func Read(t testing.TB, s store.Store, id store.ID) store.Record {
	t.Helper()
	rec, err := s.Read(context.Background(), id)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return rec
}

// Accept accepts; the operation must be new.
func Accept(t testing.TB, s store.WorkStore, req store.ClaimRequest, work string) store.Record {
	t.Helper()
	rec, err := s.Accept(context.Background(), req, []byte(work), 0)
	if err != nil || rec.State != store.Accepted || rec.Owner != req.Owner {
		t.Fatalf("Accept: got %+v, %v; want it accepted of %x", rec, err, req.Owner)
	}
	return rec
}

// Take takes an accepted operation, which must be granted.
func Take(t testing.TB, s store.WorkStore, id store.ID) store.Record {
	t.Helper()
	owner := store.NewOwner()
	rec, err := s.Take(context.Background(), store.TakeRequest{ID: id, Owner: owner, Lease: time.Minute})
	if err != nil || rec.State != store.Running || rec.Owner != owner {
		t.Fatalf("Take: got %+v, %v; want it granted to %x", rec, err, owner)
	}
	return rec
}
