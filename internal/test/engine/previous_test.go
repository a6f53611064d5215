package engine_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// renamed returns the options of a service that derives scopes, keys and fingerprints in
// another way than before.
func renamed(claim bool) stet.Options {
	return stet.Options{Namespace: "v2", ClaimPrevious: claim, Policy: stet.Policy{KeepScope: true, KeepKey: true},
		Previous: func(_ context.Context, now stet.Op) (string, stet.Op) {
			return "", stet.Op{Scope: strings.TrimPrefix(now.Scope, "account:"), Key: strings.TrimPrefix(now.Key, "key:"), Fingerprint: stet.NewFingerprint([]byte("before"))}
		}}
}

func TestRenamedOperationKeepsItsOutcomeKeysAndReference(t *testing.T) {
	s := memory.New(memory.Options{})
	before := newEngine(t, s, stet.Options{Policy: stet.Policy{KeepScope: true, KeepKey: true}})
	old := stet.Op{Scope: "a", Key: "k", Fingerprint: stet.NewFingerprint([]byte("before")), Ref: "order 7"}
	now := stet.Op{Scope: "account:a", Key: "key:k", Fingerprint: stet.NewFingerprint([]byte("now")), Ref: "order 7"}
	var keys []string
	run := func(e *stet.Engine, op stet.Op, x stet.Execution) (stet.Result[string], error) {
		return stet.Do(t.Context(), e, op, func(ctx context.Context) (string, error) {
			r := stet.FromContext(ctx)
			r.Declare(x, 0)
			keys = append(keys, r.DeriveKey("charge"))
			return "charged", nil
		})
	}
	if _, err := run(before, old, stet.NotExecuted); stet.KindOf(err) != stet.KindRetryable {
		t.Fatal(err)
	}
	e := newEngine(t, s, renamed(false))
	if res, err := run(e, now, stet.Executed); err != nil || res.Attempt != 2 || len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("the second attempt: %+v, %v, keys %q; want the key of the first", res, err, keys)
	}
	if res, err := run(e, now, stet.Executed); err != nil || !res.Replayed {
		t.Errorf("a retry: %+v, %v", res, err)
	}
	for _, scope := range []string{"account:a", "account:b"} {
		st, err := e.Status(t.Context(), scope, before.ID("a", "k"))
		if own := scope == "account:a"; err != nil || st.Record.State.Settled() != own || own && (st.Op.Scope != "a" || st.Op.Key != "k" || st.Op.Ref != "order 7") {
			t.Errorf("the status for %s: %+v, %v", scope, st, err)
		}
	}
	now.Fingerprint = stet.NewFingerprint([]byte("another"))
	if res, err := run(newEngine(t, memory.New(memory.Options{}), renamed(true)), now, stet.Executed); err != nil || res.Replayed {
		t.Errorf("in an empty store: %+v, %v", res, err)
	}
}

func TestOperationInsideItselfIsRefused_UnderBothNames(t *testing.T) {
	s := memory.New(memory.Options{})
	outer, inner := newEngine(t, s, renamed(true)), newEngine(t, s, renamed(false))
	now := stet.Op{Scope: "account:a", Key: "key:k"}
	_, err := stet.Do(t.Context(), outer, now, func(ctx context.Context) (int, error) {
		_, err := stet.Do(ctx, inner, now, func(context.Context) (int, error) { return 0, nil })
		return 0, err
	})
	if err == nil || !strings.Contains(err.Error(), "inside itself") {
		t.Errorf("%v", err)
	}
}

func TestPreviousNamespaceMustDiffer(t *testing.T) {
	for _, was := range []string{"v2", strings.Repeat("n", store.MaxScope+1)} {
		_, err := stet.New(memory.New(memory.Options{}), stet.Options{Namespace: "v2", Previous: func(_ context.Context, op stet.Op) (string, stet.Op) { return was, op }})
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%.10q: %v", was, err)
		}
	}
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{Namespace: "v2", Previous: func(context.Context, stet.Op) (string, stet.Op) { return "", stet.Op{} }})
	if _, err := e.Begin(t.Context(), stet.Op{Scope: "a", Key: "k"}); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), "Previous") {
		t.Errorf("a previous name without a scope: %v", err)
	}
}

// A process of the step before claimed the previous name after a run had begun under the current one, and died
// before its check. The run can still be alive, so the verifier must resolve its record.
func TestVerifierResolvesTheNameThatRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		verified := stet.Outcome{Status: 200, Type: "application/json", Body: []byte(`"verified"`)}
		options := renamed(false)
		options.Policy.Verify = func(context.Context, stet.Status) (stet.Resolution, error) {
			return stet.ItHappened(verified), nil
		}
		now := stet.Op{Scope: "account:a", Key: "key:k"}
		paused := newEngine(t, s, options)
		run, err := paused.Begin(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		if err := paused.Close(); err != nil { // it renews no lease
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := s.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", "a", "k"), Scope: store.DigestScope("", "a"),
			Fingerprint: stet.NewFingerprint([]byte("before")), Owner: store.NewOwner(), Lease: time.Second}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		res, err := stet.Do(t.Context(), newEngine(t, s, options), now, func(context.Context) (string, error) {
			t.Error("it ran again")
			return "", nil
		})
		if err != nil || res.Value != "verified" {
			t.Errorf("a retry: %+v, %v", res, err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{Status: 200}); stet.KindOf(err) != stet.KindFenced {
			t.Errorf("the late run stores another outcome: %v", err)
		}
	})
}

// unread is a store that reads no record, as before two processes accept at the same moment.
type unread struct{ *memory.Store }

func (unread) Read(_ context.Context, id store.ID) (store.Record, error) {
	return store.Record{ID: id}, nil
}

func TestJobThatRunsUnderItsOtherNameCannotBeCancelled(t *testing.T) {
	s := memory.New(memory.Options{})
	e := newEngine(t, s, renamed(false))
	key := "k"
	for previous, current := store.Digest("", "a", key), e.ID("account:a", "key:"+key); bytes.Compare(previous[:], current[:]) > 0; {
		key += "k"
		previous, current = store.Digest("", "a", key), e.ID("account:a", "key:"+key)
	}
	var ids []store.ID
	for _, claim := range []bool{true, false} {
		st, err := newEngine(t, unread{s}, renamed(claim)).Accept(t.Context(), stet.Op{Scope: "account:a", Key: "key:" + key}, stet.Work{Name: "job"})
		if err != nil || !st.New {
			t.Fatalf("%+v, %v", st, err)
		}
		ids = append(ids, st.Record.ID)
	}
	run, err := e.Take(t.Context(), stet.Item{ID: ids[0], Name: "job"})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := e.Cancel(t.Context(), "account:a", ids[1]); stet.KindOf(err) != stet.KindInFlight || st.Record.State.Settled() {
		t.Errorf("Cancel: %+v, %v; want KindInFlight", st, err)
	}
	if err := run.Settle(t.Context(), stet.Outcome{Status: 200}); err != nil {
		t.Fatal(err)
	}
	if again, err := e.Take(t.Context(), stet.Item{ID: ids[1], Name: "job"}); err != nil || !again.Replayed() || again.Outcome().Failed {
		t.Errorf("the other job: %+v, %v; want the outcome of the first", again, err)
	}
}

// A claim that met another one is given up, and leaves a retryable record if its request was repeated.
func TestReleasedClaimOfTheOtherNameDoesNotStopAJob(t *testing.T) {
	s := memory.New(memory.Options{})
	op := stet.Op{Scope: "account:a", Key: "key:k"}
	st, err := newEngine(t, unread{s}, renamed(false)).Accept(t.Context(), op, stet.Work{Name: "job"})
	if err != nil || !st.New {
		t.Fatalf("%+v, %v", st, err)
	}
	rec, err := s.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", "a", "k"), Scope: store.DigestScope("", "a"),
		Fingerprint: stet.NewFingerprint([]byte("before")), Owner: store.NewOwner(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), rec.Claim(), store.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, s, renamed(false))
	run, err := e.Take(t.Context(), stet.Item{ID: st.Record.ID, Name: "job"})
	if err != nil {
		t.Fatalf("the job: %v", err)
	}
	if err := run.Settle(t.Context(), stet.Outcome{Status: 200}); err != nil {
		t.Error(err)
	}
}

func TestReleasedClaimOfTheOtherNameDoesNotStopARun(t *testing.T) {
	s := memory.New(memory.Options{})
	op := stet.Op{Scope: "account:a", Key: "key:k"}
	steps := 0
	run := func(o stet.Options, op stet.Op, x stet.Execution) error {
		_, err := stet.Do(t.Context(), newEngine(t, s, o), op, func(ctx context.Context) (int, error) {
			stet.FromContext(ctx).Declare(x, 0)
			return stet.Step(ctx, "step", func(context.Context) (int, error) { steps++; return steps, nil })
		})
		return err
	}
	if err := run(stet.Options{}, stet.Op{Scope: "a", Key: "k", Fingerprint: stet.NewFingerprint([]byte("before"))}, stet.NotExecuted); stet.KindOf(err) != stet.KindRetryable {
		t.Fatal(err)
	}
	e := newEngine(t, s, renamed(false))
	rec, err := s.Claim(t.Context(), store.ClaimRequest{ID: e.ID("account:a", "key:k"), Scope: store.DigestScope("v2", "account:a"), Owner: store.NewOwner(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), rec.Claim(), store.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := run(renamed(false), op, stet.Executed); err != nil || steps != 1 {
		t.Errorf("%v; %d steps", err, steps)
	}
}
