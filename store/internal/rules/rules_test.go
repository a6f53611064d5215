package rules

import (
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

var (
	now   = time.Unix(1_800_000_000, 0)
	mine  = store.Owner{1}
	claim = store.Claim{Owner: mine, Fence: 7}
	done  = store.Settlement{State: store.Completed, Result: store.Result{Status: 200}}
)

// record is a record with that state and the fence of claim.
func record(state store.State, with func(*store.Record)) store.Record {
	rec := store.Record{State: state, Owner: store.Owner{2}, Fence: 7, LeaseLeft: time.Second, ExpiresAt: now.Add(time.Hour), Result: done.Result}
	if with != nil {
		with(&rec)
	}
	return rec
}

func expired(rec *store.Record) { rec.LeaseLeft = 0 }
func owned(rec *store.Record)   { rec.Owner = mine }
func job(rec *store.Record)     { rec.Work = []byte{} }

func TestClaims(t *testing.T) {
	for name, c := range map[string]struct {
		rec  store.Record
		want Change
		err  error
	}{
		"no record":                  {store.Record{}, Grant, nil},
		"running":                    {record(store.Running, nil), None, nil},
		"running, lease expired":     {record(store.Running, expired), MarkUnknown, nil},
		"running under this owner":   {record(store.Running, func(r *store.Record) { owned(r); expired(r) }), None, nil},
		"retryable":                  {record(store.Retryable, nil), Grant, nil},
		"retryable under this owner": {record(store.Retryable, owned), None, nil},
		"unknown":                    {record(store.Unknown, nil), None, nil},
		"completed":                  {record(store.Completed, nil), None, nil},
		"another payload":            {record(store.Completed, func(r *store.Record) { r.Fingerprint[0] = 1 }), None, store.ErrMismatch},
	} {
		if got, err := OnClaim(c.rec, store.ClaimRequest{Owner: mine}); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, err, c.want, c.err)
		}
	}
}

func TestEndings(t *testing.T) {
	for name, c := range map[string]struct {
		rec                      store.Record
		settle, release, returns Change
	}{
		"no record":                    {store.Record{}, fenced, fenced, fenced},
		"running":                      {record(store.Running, nil), Settle, Release, fenced},
		"running job, lease expired":   {record(store.Running, func(r *store.Record) { job(r); expired(r) }), Settle, Return, Return},
		"unknown":                      {record(store.Unknown, nil), Settle, Release, fenced},
		"another fence":                {record(store.Running, func(r *store.Record) { r.Fence++ }), fenced, fenced, fenced},
		"the same outcome":             {record(store.Completed, nil), None, fenced, fenced},
		"the same outcome, expired":    {record(store.Completed, func(r *store.Record) { r.ExpiresAt = now }), fenced, fenced, fenced},
		"the same outcome, discarded":  {record(store.Completed, func(r *store.Record) { r.Gone = true }), fenced, fenced, fenced},
		"another outcome":              {record(store.Completed, func(r *store.Record) { r.Result.Status = 201 }), fenced, fenced, fenced},
		"released":                     {record(store.Retryable, nil), fenced, None, fenced},
		"a job that waits for workers": {record(store.Accepted, job), fenced, None, None},
	} {
		settle, settleErr := OnSettle(c.rec, claim, done, now)
		release, releaseErr := OnRelease(c.rec, claim)
		returns, returnErr := OnReturn(c.rec, claim)
		for _, got := range []struct {
			call      string
			got, want Change
			err       error
		}{{"settle", settle, c.settle, settleErr}, {"release", release, c.release, releaseErr}, {"return", returns, c.returns, returnErr}} {
			if got.want == fenced && !errors.Is(got.err, store.ErrFenced) || got.want != fenced && (got.err != nil || got.got != got.want) {
				t.Errorf("%s, %s: %v, %v; want %v", name, got.call, got.got, got.err, got.want)
			}
		}
	}
}

// fenced is store.ErrFenced in tables.
const fenced Change = 255
