package engine_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

var shipped = stet.Message{To: "shipped", Key: "order 7", Header: map[string]string{"type": "order"}, Body: []byte("\x00order 7")}

// messages returns all that is due to be sent, which is then due a minute later.
func messages(t *testing.T, e *stet.Engine) (all []stet.Message) {
	t.Helper()
	n, err := e.Relay(t.Context(), 100, time.Minute, func(operations [][]stet.Message, _ func(int, error)) error {
		all = slices.Concat(operations...)
		return nil
	})
	if n != 0 || err != nil {
		t.Fatalf("due: %d, %v", n, err)
	}
	return all
}

// relays sends the due messages of one operation.
func relays(t *testing.T, e *stet.Engine) {
	t.Helper()
	n, err := e.Relay(t.Context(), 10, time.Nanosecond, func(operations [][]stet.Message, told func(int, error)) error {
		if len(operations) != 1 || len(operations[0]) != 1 {
			t.Errorf("due are %+v", operations)
		}
		told(0, nil)
		return nil
	})
	if n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestMessagesLeaveWithTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		for range 3 { // the others are replays
			_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
				run := stet.FromContext(ctx)
				body, header := bytes.Clone(shipped.Body), maps.Clone(shipped.Header)
				m := shipped
				m.ID, m.Body, m.Header = "ignored", body, header
				if err := errors.Join(run.Emit(m), run.Emit(stet.Message{To: "billed"})); err != nil {
					t.Error(err)
				}
				clear(body)
				clear(header)
				if all := messages(t, e); len(all) != 0 {
					t.Errorf("before the outcome there are %+v", all)
				}
				return 1, nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		all := messages(t, e)
		if len(all) != 2 || all[0].To != "shipped" || all[0].Key != "order 7" || all[0].Header["type"] != "order" || string(all[0].Body) != "\x00order 7" || all[1].To != "billed" {
			t.Fatalf("%+v", all)
		}
		if all[0].ID == "ignored" || all[0].ID == all[1].ID || len(all[0].ID) != 36 {
			t.Errorf("the IDs are %q and %q", all[0].ID, all[1].ID)
		}
		if again := messages(t, e); len(again) != 0 {
			t.Errorf("returned twice at the same time: %+v", again)
		}
		time.Sleep(time.Minute) // the relay died
		again := messages(t, e)
		if len(again) != 2 || again[0].ID != all[0].ID || again[1].ID != all[1].ID {
			t.Errorf("sent again with other IDs: %+v", again)
		}
	})
}

func TestMessageIDsAreTheOperationsOwn(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range []stet.Op{op, {Scope: "acct_2", Key: "k1"}, {Scope: "acct_1", Key: "k2"}} {
		var ids []string
		for range 2 { // in two stores, as after a loss of the first
			e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
			if _, err := stet.Do(t.Context(), e, o, func(ctx context.Context) (int, error) { return 1, stet.FromContext(ctx).Emit(shipped) }); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, messages(t, e)[0].ID)
		}
		if ids[0] != ids[1] || seen[ids[0]] {
			t.Errorf("%v", ids)
		}
		seen[ids[0]] = true
	}
}

func TestRelayedMessagesAreNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{SweepEvery: time.Hour, Policy: stet.Policy{Retention: store.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}}})
		it := accept(t, e, op, parcel)
		run := take(t, e, it)
		if err := run.Emit(shipped); err != nil {
			t.Fatal(err)
		}
		complete(t, run, "x")
		time.Sleep(24 * time.Hour) // far beyond its retention
		n, err := e.Relay(t.Context(), 1, time.Minute, func(_ [][]stet.Message, told func(int, error)) error {
			told(0, nil)
			told(0, nil)
			time.Sleep(time.Hour)
			if all := messages(t, e); len(all) != 0 {
				t.Errorf("%+v", all)
			}
			if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindExpired {
				t.Errorf("it is kept for two hours more: %v", err)
			}
			time.Sleep(3 * time.Hour)
			told(0, nil) // the record is forgotten
			return nil
		})
		if n != 3 || err != nil {
			t.Errorf("told three times: %d, %v; want 3 and no error", n, err)
		}
		if n := st.Len(); n != 0 {
			t.Errorf("%d records are left", n)
		}
	})
}

func TestRunWithoutOutcomeEmitsNothing(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	for _, end := range []func(*stet.Lease) error{
		func(r *stet.Lease) error { return r.Release(t.Context(), stet.Again{}) },
		func(r *stet.Lease) error { return r.MarkUnknown(t.Context()) },
	} {
		run := take(t, e, it)
		if err := errors.Join(run.Emit(shipped), end(run)); err != nil {
			t.Fatal(err)
		}
		if err := run.Emit(shipped); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("after its end: %v", err)
		}
	}
	if all := messages(t, e); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	other := op
	other.Key = "failing"
	down := errors.New("down")
	for _, fails := range []error{stet.Retryable(errors.New("busy")), nil} {
		_, _ = stet.Do(t.Context(), e, other, func(ctx context.Context) (int, error) {
			return 1, errors.Join(stet.FromContext(ctx).Emit(shipped), fails)
		})
	}
	if all := messages(t, e); len(all) != 1 {
		t.Errorf("of a released and a completed run: %+v", all)
	}
	store, etx := bank(t)
	for _, fails := range []error{down, nil} {
		_, err := stet.DoTx(t.Context(), txOf(etx, store), op, func(ctx context.Context, tx *sql.Tx) (int, error) {
			return 1, errors.Join(stet.FromContext(ctx).Emit(shipped), fails)
		})
		if !errors.Is(err, fails) {
			t.Error(err)
		}
	}
	if all := messages(t, etx); len(all) != 1 {
		t.Errorf("of a transaction that was rolled back and another that was committed: %+v", all)
	}
}

func TestReplayEmitsNothing(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	complete(t, take(t, e, it), "x")
	if err := take(t, e, it).Emit(shipped); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("%v", err)
	}
	if all := messages(t, e); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// A message emitted after SettleTx would be lost, so Emit fails.
func TestEmitAfterSettleTxFails(t *testing.T) {
	store, e := bank(t)
	run := take(t, e, accept(t, e, op, parcel))
	out := stet.Outcome{Body: []byte("x")}
	err := store.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return txOf(e, store).Settle(ctx, run, tx, out)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Emit(shipped); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("%v", err)
	}
	if err := run.Settle(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if all := messages(t, e); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	var view *stet.Run
	if _, err := stet.DoTx(t.Context(), txOf(e, store), stet.Op{Scope: "acct_1", Key: "k2"}, func(ctx context.Context, _ *sql.Tx) (int, error) {
		view = stet.FromContext(ctx)
		return 1, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := view.Emit(shipped); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a transaction that has ended: %v", err)
	}
}

func TestEmittingIsBounded(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run := take(t, e, accept(t, e, op, parcel))
	for name, m := range map[string]stet.Message{
		"without a place to go":       {Body: []byte("x")},
		"a place that is no UTF-8":    {To: "\xff"},
		"a key that is no UTF-8":      {To: "x", Key: "\xff"},
		"a header that is no UTF-8":   {To: "x", Header: map[string]string{"\xff": ""}},
		"a value that is no UTF-8":    {To: "x", Header: map[string]string{"a": "\xff"}},
		"larger than all may be":      {To: "x", Body: make([]byte, store.MaxOutbox)},
		"with a header that is large": {To: "x", Header: map[string]string{"a": strings.Repeat("b", store.MaxOutbox)}},
	} {
		if err := run.Emit(m); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range store.MaxMessages {
		if err := run.Emit(stet.Message{To: "x", Body: make([]byte, 1<<10-1)}); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if err := run.Emit(stet.Message{To: "x"}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("one too many: %v", err)
	}
	complete(t, run, "x")
	if all := messages(t, e); len(all) != store.MaxMessages {
		t.Errorf("%d messages", len(all))
	}
}

// An outcome whose result is too large to be kept has its messages all the same.
func TestMessagesOfAResultThatIsNotKept(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{MaxResult: 1}})
	run := take(t, e, accept(t, e, op, parcel))
	if err := run.Emit(shipped); err != nil {
		t.Fatal(err)
	}
	complete(t, run, "too large")
	if all := messages(t, e); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestMessagesCannotBeReadOrSwapped(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, encrypted(secret("k", 1)))
	secretly := stet.Message{To: "cards", Body: []byte("card 4242")}
	var recs []store.Record
	for _, key := range []string{"k1", "k2"} {
		o := op
		o.Key = key
		run := take(t, e, accept(t, e, o, parcel))
		if err := run.Emit(secretly); err != nil {
			t.Fatal(err)
		}
		complete(t, run, "x")
		rec, err := st.Look(t.Context(), run.ID())
		if err != nil || rec.Outbox == nil || bytes.Contains(rec.Outbox, []byte("cards")) || bytes.Contains(rec.Outbox, []byte("Y2FyZCA0MjQy")) {
			t.Fatalf("the store has %q, %v", rec.Outbox, err)
		}
		recs = append(recs, rec)
	}
	forged := newEngine(t, forgingOutbox{st, recs[0].ID, recs[1].Outbox}, encrypted(secret("k", 1)))
	all := messages(t, forged)
	if len(all) != 1 || string(all[0].Body) != "card 4242" {
		t.Errorf("with the messages of one operation copied over another's: %+v", all)
	}
}

// forgingOutbox is a store with forged messages.
type forgingOutbox struct {
	*memory.Store
	id     store.ID
	outbox []byte
}

func (s forgingOutbox) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	recs, err := s.Store.DueMessages(ctx, limit, again)
	for i := range recs {
		if recs[i].ID == s.id {
			recs[i].Outbox = s.outbox
		}
	}
	return recs, err
}

func TestMessagesComeThroughALostReply(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.FailBefore, storetest.FailAfter} {
		for _, method := range []string{"Settle", "Relayed"} {
			store := memory.New(memory.Options{})
			e := newEngine(t, storetest.Faulty(store, func(c storetest.Call) storetest.Fault {
				if c.Method == method && c.N == 1 {
					return fault
				}
				return storetest.NoFault
			}), stet.Options{})
			run := take(t, e, accept(t, e, op, parcel))
			if err := run.Emit(shipped); err != nil {
				t.Fatal(err)
			}
			complete(t, run, "x")
			relays(t, e)
			if all := messages(t, e); len(all) != 0 {
				t.Errorf("%s: sent again: %+v", method, all)
			}
		}
	}
}

func TestUnconfirmedMessageIsSentAgain(t *testing.T) {
	var rec recorder
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1, Observer: &rec})
	run := begin(t, e, op)
	if err := errors.Join(run.Emit(shipped), run.Settle(t.Context(), stet.Outcome{})); err != nil {
		t.Fatal(err)
	}
	rec.take()
	refused, broken := errors.New("refused"), errors.New("the connection broke")
	n, err := e.Relay(t.Context(), 1, 1, func(_ [][]stet.Message, told func(int, error)) error {
		told(0, refused)
		return broken
	})
	if events := rec.take(); n != 0 || !errors.Is(err, broken) || events != "unsent" {
		t.Errorf("refused: %d, %v, events %q; want 0, the error of send, and unsent", n, err, events)
	}
	relays(t, e)
	if events := rec.take(); events != "relayed" {
		t.Errorf("sent: events %q; want relayed", events)
	}
}

// deaf is a store whose Relayed fails.
type deaf struct{ *memory.Store }

func (deaf) Relayed(context.Context, store.Claim, store.Retention) error { return errDown }

func TestMessageWithoutAStoredConfirmationIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		e := newEngine(t, deaf{memory.New(memory.Options{})}, stet.Options{SweepEvery: -1, Observer: &rec})
		run := begin(t, e, op)
		if err := errors.Join(run.Emit(shipped), run.Settle(t.Context(), stet.Outcome{})); err != nil {
			t.Fatal(err)
		}
		rec.take()
		n, err := e.Relay(t.Context(), 1, time.Second, func(_ [][]stet.Message, told func(int, error)) error {
			told(0, nil)
			return nil
		})
		if events := rec.take(); n != 0 || stet.KindOf(err) != stet.KindStore || events != "" {
			t.Errorf("%d, %v, events %q; want 0, the store's error and no event", n, err, events)
		}
		time.Sleep(2 * time.Second)
		if all := messages(t, e); len(all) != 1 {
			t.Errorf("due again are %+v; want the message", all)
		}
	})
}

// halfDown is a store of which a part does not answer.
type halfDown struct{ *memory.Store }

func (s halfDown) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	recs, err := s.Store.DueMessages(ctx, limit, again)
	return recs, errors.Join(err, errDown)
}

// Messages of other shards are sent while one shard is unavailable.
func TestMessagesOfOtherShardsAreSent(t *testing.T) {
	e := newEngine(t, halfDown{memory.New(memory.Options{})}, stet.Options{SweepEvery: -1})
	if n, err := e.Relay(t.Context(), 1, time.Minute, nil); n != 0 || stet.KindOf(err) != stet.KindStore {
		t.Errorf("nothing was found: %d, %v; want the store's error", n, err)
	}
	run := begin(t, e, op)
	if err := errors.Join(run.Emit(shipped), run.Settle(t.Context(), stet.Outcome{})); err != nil {
		t.Fatal(err)
	}
	n, err := e.Relay(t.Context(), 1, time.Minute, func(_ [][]stet.Message, told func(int, error)) error {
		told(0, nil)
		return nil
	})
	if n != 1 || stet.KindOf(err) != stet.KindStore || !errors.Is(err, errDown) {
		t.Errorf("%d, %v; want 1 sent, and the store's error", n, err)
	}
}
