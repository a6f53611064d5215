package storetest

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet/store"
)

// outboxMakings are the situations that only a store.OutboxStore knows.
var outboxMakings = []making{
	{name: "completed, with messages", state: store.Completed, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), with("messages", completed("result")), f.keep)
	}},
	{name: "failed with messages, its result expired", state: store.Failed, expired: true, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), with("messages", failed("result")), store.Retention{Result: f.unit, Tombstone: f.keep.Tombstone})
	}},
}

// bothMakings are those of a store that keeps work and messages.
var bothMakings = []making{
	{name: "taken and completed, with messages", state: store.Completed, begin: taking, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), with("messages", completed("result")), f.keep)
	}},
}

// with returns the outcome with an outbox.
func with(outbox string, out store.Settlement) store.Settlement {
	out.Outbox = []byte(outbox)
	return out
}

// emits settles a new operation with messages.
func (f *fixture) emits(keep store.Retention) store.Claim {
	f.Helper()
	c := f.grant(f.request(f.long)).Claim()
	f.settle(c, with("messages", completed("result")), keep)
	return c
}

// messages returns all that has messages due, and makes it due again much later.
// Nothing may come twice.
func (f *fixture) messages() map[store.ID]store.Record {
	f.Helper()
	return f.all("DueMessages", func() ([]store.Record, error) { return f.can.outbox.DueMessages(f.ctx, 100, f.long) })
}

// sends requires that, of all records, these be due to have their messages sent.
func (f *fixture) sends(when string, want ...store.ID) {
	f.Helper()
	all := f.messages()
	for _, id := range want {
		if rec, ok := all[id]; !ok || !rec.State.Settled() || string(rec.Outbox) != "messages" {
			f.Errorf("%s: DueMessages returned %s, with %s", when, show(rec), brief(rec.Outbox))
		}
		delete(all, id)
	}
	for _, rec := range all {
		f.Errorf("%s: DueMessages returned a record that has none to send: %s", when, show(rec))
	}
}

func (f *fixture) relay(c store.Claim, keep store.Retention) {
	f.Helper()
	if err := f.can.outbox.Relayed(f.ctx, c, keep); err != nil {
		f.Fatalf("Relayed: %v", err)
	}
}

// outboxChecks hold a store to what store.OutboxStore asks for beyond store.Store.
var outboxChecks = []check{
	{"messages are durable with the outcome, and due at once", "a message is sent after its commit, and never without it.",
		outboxIsDue},
	{"messages are kept as they were first written", "a settle that is repeated must not lose them, and not bring them back.",
		outboxIsKept},
	{"messages come back byte for byte", "the sent message is the emitted one.",
		outboxIsExact},
	{"messages that were returned and not sent are due again", "a relay may lose them; the record does not.",
		messagesAgain},
	{"the oldest messages are due first, in bounded numbers", "later messages must not delay them permanently.",
		messagesInTurn},
	{"no two callers get the same messages within their time", "every process asks; a second delivery is double work.",
		messagesTogether},
	{"nothing with messages is forgotten", "the relay may be away for long.",
		outboxOutlivesRetention},
	{"relayed messages are gone, and the record is kept as long as was asked for from then on", "they are sent no more; the key still does not run.",
		relayedIsGone},
	{"relaying in each state compares the fence", "only settled records have messages to send.",
		relayedInEachState},
	{"an empty outbox is kept like any other", "nothing is not the same as none: its record waits to be relayed.",
		emptyOutboxIsKept},
	{"one lost request or reply about messages is not noticed", "networks lose both: messages come with their outcome, and are sent in the end.",
		oneFaultAboutMessages},
}

func outboxIsDue(f *fixture) {
	late := f.grant(f.request(f.unit))
	dead := f.request(f.unit)
	cases := map[string]store.Record{"past its lease": late, "unknown": f.grant(dead), "claimed": f.grant(f.request(f.long)), "too large": f.grant(f.request(f.long))}
	if f.can.works != nil {
		_, cases["taken"] = f.taken(f.long)
	}
	f.pass(1)
	f.claim(byAnother(dead)) // marks unknown
	for what, rec := range cases {
		out := with("messages", completed("result"))
		if what == "too large" {
			out.Result, out.Gone = store.Result{}, true
		}
		f.settle(rec.Claim(), out, f.keep)
		f.sends("settled when it was "+what, rec.ID)
		now := f.is("settled with messages when it was "+what, rec.ID, store.Completed, rec.Fence)
		if now.Gone != out.Gone || !now.Result.Equal(out.Result) || !now.ForgetAt.IsZero() {
			f.Errorf("settled with messages when it was %s, it is %s, forgotten at %v", what, show(now), now.ForgetAt)
		}
		f.bare("Read of a record with messages", now)
	}
	f.settle(f.grant(f.request(f.long)).Claim(), completed("x"), f.keep)
	f.sends("settled without messages")
	if f.can.works == nil {
		return
	}
	if now := f.look(cases["taken"].ID); string(now.Outbox) != "messages" || now.Work != nil || now.Notes.Version != 0 {
		f.Errorf("settled with messages, Look returns the outbox %s, the work %s and the notes %s", brief(now.Outbox), brief(now.Work), noted(now.Notes))
	}
	f.isDue("settled with messages")
	c := f.accepts(f.request(f.long), f.long).Claim()
	f.fenced("Settle with messages of a record that is only accepted", f.store.Settle(f.ctx, c, with("never", completed("x")), f.keep))
	f.sends("accepted alone")
}

func outboxIsKept(f *fixture) {
	c := f.emits(f.keep)
	again := func(when string) {
		f.Helper()
		was := f.read(c.ID)
		for _, outbox := range []string{"messages", "others", ""} {
			out := with(outbox, completed("result"))
			if outbox == "" {
				out.Outbox = nil
			}
			f.settle(c, out, f.keep)
			f.unchanged(when+", a repeated settle", was)
		}
		f.fenced(when+", Settle with another outcome", f.store.Settle(f.ctx, c, with("third", failed("no")), f.keep))
		f.unchanged(when+", Settle with another outcome", was)
	}
	again("settled")
	f.sends("settled, and again", c.ID)
	again("returned")
	f.sends("returned, and settled again")
	f.relay(c, f.keep)
	again("relayed")
	f.sends("relayed, and settled again")
}

func outboxIsExact(f *fixture) {
	for name, b := range manyBytes() {
		c := f.grant(f.request(f.long)).Claim()
		f.settle(c, store.Settlement{State: store.Completed, Result: result("result"), Outbox: b}, f.keep)
		got := map[string][]byte{"DueMessages": f.messages()[c.ID].Outbox}
		if f.can.works != nil {
			got["Look"] = f.look(c.ID).Outbox
		}
		for by, outbox := range got {
			if !bytes.Equal(outbox, b) {
				f.Errorf("%s returned %s; want %q (%d bytes)", by, brief(outbox), name, len(b))
			}
		}
	}
}

func messagesAgain(f *fixture) {
	c := f.emits(f.keep)
	for i := range 3 {
		recs, err := f.can.outbox.DueMessages(f.ctx, 100, f.unit)
		if err != nil || len(recs) != 1 || recs[0].ID != c.ID || string(recs[0].Outbox) != "messages" || recs[0].Work != nil {
			f.Fatalf("round %d: DueMessages returned %d records, %v; want the waiting record, with its outbox", i+1, len(recs), err)
		}
		f.is("returned by DueMessages", c.ID, store.Completed, c.Fence)
		if again, err := f.can.outbox.DueMessages(f.ctx, 100, f.unit); f.h.Advance != nil && (err != nil || len(again) != 0) {
			f.Errorf("round %d: DueMessages at once again returned %d records, %v; want none", i+1, len(again), err)
		}
		f.pass(1)
	}
	f.sends("at last", c.ID)
	f.sends("returned a moment ago")
	if f.h.Advance == nil {
		return // a clock that runs cannot be met at a moment
	}
	f.h.Advance(f, f.long)
	f.sends("at the time that it is due again", c.ID)
}

func messagesInTurn(f *fixture) {
	const n, limit = 12, 4
	var ids []store.ID
	for range n {
		ids = append(ids, f.emits(f.keep).ID)
		f.pass(1)
	}
	for len(ids) > 0 {
		recs, err := f.can.outbox.DueMessages(f.ctx, limit, f.long)
		if err != nil || len(recs) == 0 || len(recs) > 2*limit {
			f.Fatalf("DueMessages with a limit of %d returned %d records of %d, %v", limit, len(recs), len(ids), err)
		}
		for i, rec := range recs {
			if i < len(ids) && rec.ID != ids[i] {
				f.Errorf("DueMessages returned %v; want the longest waiting, %v", rec.ID, ids[i])
			}
		}
		ids = ids[min(len(recs), len(ids)):]
	}
}

func messagesTogether(f *fixture) {
	const n = 60
	for range n {
		f.emits(f.keep)
	}
	f.together(n, func() ([]store.Record, error) { return f.can.outbox.DueMessages(f.ctx, 7, f.long) })
}

func outboxOutlivesRetention(f *fixture) {
	short := store.Retention{Result: f.unit / 2, Tombstone: f.unit}
	var reqs []store.ClaimRequest
	settles := func(req store.ClaimRequest, rec store.Record, out store.Settlement) {
		f.settle(rec.Claim(), with("messages", out), short)
		reqs = append(reqs, req)
	}
	req := f.request(f.long)
	settles(req, f.grant(req), completed("x"))
	if f.can.works != nil {
		req, rec := f.taken(f.long)
		settles(req, rec, failed("x"))
	}
	units := 3
	if f.h.Advance != nil {
		units = int(3 * 365 * 24 * time.Hour / f.unit)
	}
	f.pass(units)
	if b := f.can.browser; b != nil {
		for _, req := range reqs {
			if err := b.Expire(f.ctx, f.read(req.ID).Claim()); err != nil {
				f.Errorf("Expire of a record with messages: %v", err)
			}
		}
	}
	var ids []store.ID
	for range 2 {
		if f.can.sweeper != nil {
			f.sweepAll(f.can.sweeper)
		}
		ids = nil
		for _, req := range reqs {
			if rec := f.claim(byAnother(req)); !rec.State.Settled() || !rec.Gone || !rec.Result.IsZero() {
				f.Errorf("much later, a record with messages is %s; want it settled, and gone", show(rec))
			}
			ids = append(ids, req.ID)
		}
	}
	f.sends("much later", ids...)
}

func relayedIsGone(f *fixture) {
	kept, leaves := f.request(f.long), f.request(f.long)
	c, left := f.grant(kept).Claim(), f.grant(leaves).Claim()
	f.settle(c, with("messages", completed("result")), store.Retention{Result: f.unit, Tombstone: f.unit})
	f.settle(left, with("messages", completed("result")), f.keep)
	f.pass(2)
	was := f.read(c.ID)
	f.relay(c, f.keep)
	now := f.read(c.ID)
	if now.State != store.Completed || !now.Gone || !sameTime(now.ExpiresAt, was.ExpiresAt) {
		f.Errorf("relayed, a record that was %s is %s", show(was), show(now))
	}
	if got := now.ForgetAt.Sub(now.SettledAt); got < f.keep.Tombstone+2*f.unit || got > f.keep.Tombstone+3*f.unit+patience {
		f.Errorf("relayed %v after it was settled, the record is forgotten %v after that; want %v after it was relayed", 5*f.unit/2, got, f.keep.Tombstone)
	}
	f.relay(c, store.Retention{Result: f.unit, Tombstone: f.unit}) // the reply to the first time may have been lost
	f.unchanged("Relayed again", now)
	f.relay(left, store.Retention{Result: f.unit / 2, Tombstone: f.unit})
	f.sends("relayed")
	f.pass(1)
	if f.can.sweeper != nil {
		f.sweepAll(f.can.sweeper)
	}
	if rec := f.read(leaves.ID); rec.State != store.None {
		f.Errorf("past its ForgetAt, a record that was relayed is %s", show(rec))
	}
	if rec := f.claim(byAnother(kept)); rec.State != store.Completed || !rec.Gone {
		f.Errorf("before its ForgetAt, a record that was relayed is %s", show(rec))
	}
	for _, d := range greatest {
		c := f.emits(store.Retention{Result: d, Tombstone: d})
		f.relay(c, store.Retention{Result: d, Tombstone: d})
		if now := f.read(c.ID); now.State != store.Completed || now.Gone || now.ForgetAt.Before(now.SettledAt.Add(f.long)) {
			f.Errorf("relayed, to be kept for %v: %s, forgotten at %v", d, show(now), now.ForgetAt)
		}
	}
}

func relayedInEachState(f *fixture) {
	keep := store.Retention{Result: f.long, Tombstone: f.long}
	wrong := func(what string, c store.Claim) {
		f.Helper()
		f.fenced("Relayed with "+what, f.can.outbox.Relayed(f.ctx, c, keep))
	}
	wrong("a fence, of a key that was never claimed", store.Claim{ID: f.request(0).ID, Owner: store.NewOwner(), Fence: 1})
	for _, s := range f.situations() {
		future := s.claim
		future.Fence += 1_000_000
		wrong("an older fence, of a key that is "+s.name, s.stale)
		wrong("a fence never given, of a key that is "+s.name, future)
		f.untouched("Relayed with another fence", s.whole)
		err := f.can.outbox.Relayed(f.ctx, s.claim, keep)
		what := "Relayed of a key that is " + s.name
		switch {
		case !s.state.Settled():
			f.fenced(what, err)
			f.untouched(what, s.whole)
		case err != nil:
			f.Errorf("%s: %v", what, err)
		case !s.rec.ForgetAt.IsZero(): // it has no messages
			f.untouched(what, s.whole)
		default:
			f.is(what, s.req.ID, s.state, s.rec.Fence)
		}
	}
	f.sends("relayed")
}

func emptyOutboxIsKept(f *fixture) {
	c := f.grant(f.request(f.long)).Claim()
	out := completed("result")
	out.Outbox = []byte{}
	f.settle(c, out, store.Retention{Result: f.unit / 2, Tombstone: f.unit})
	if now := f.read(c.ID); !now.ForgetAt.IsZero() {
		f.Errorf("settled with an empty outbox, it is forgotten at %v, before it was relayed", now.ForgetAt)
	}
	if got := f.messages(); len(got) != 1 || !got[c.ID].State.Settled() || len(got[c.ID].Outbox) != 0 {
		f.Errorf("settled with an empty outbox, %d records are due to be relayed", len(got))
	}
	f.pass(1)
	f.is("settled with an empty outbox, past its tombstone's time,", c.ID, store.Completed, c.Fence)
	f.relay(c, f.keep)
	if now := f.read(c.ID); now.ForgetAt.IsZero() {
		f.Error("relayed, a record with an empty outbox is never forgotten")
	}
}

// messagesTx is about messages in transactions.
func (c *txCase[Tx]) messagesTx() {
	out, short := with("messages", completed("result")), store.Retention{Result: c.unit / 2, Tombstone: c.unit}
	claims := []store.Claim{c.grant(c.request(c.long)).Claim()}
	if c.can.works != nil {
		_, rec := c.taken(c.long)
		claims = append(claims, rec.Claim())
	}
	for _, cl := range claims {
		was := c.read(cl.ID)
		for _, commit := range []bool{false, true} {
			c.within(commit, func(tx Tx) {
				if err := c.store.SettleTx(c.ctx, tx, cl, out, short); err != nil {
					c.Errorf("SettleTx: %v", err)
				}
			})
			if !commit {
				c.sends("SettleTx rolled back")
				c.unchanged("SettleTx that was rolled back", was)
			}
		}
		c.sends("SettleTx", cl.ID)
		c.pass(1)
		c.is("settled with messages in a transaction, later it", cl.ID, store.Completed, cl.Fence)
	}
	req, mine := c.request(c.long), errors.New("out of stock")
	for _, fails := range []error{mine, nil} {
		rec, err := c.store.RunTx(c.ctx, req, short, func(context.Context, Tx, store.Record) (store.Settlement, error) { return out, fails })
		if !errors.Is(err, fails) {
			c.Errorf("RunTx: %v; want %v", err, fails)
		}
		if fails != nil {
			c.sends("RunTx rolled back")
			continue
		}
		c.bare("RunTx", rec)
		c.sends("RunTx", req.ID)
		c.pass(1)
		c.is("committed with messages, later it", req.ID, store.Completed, rec.Fence)
		c.relay(rec.Claim(), c.keep)
		c.sends("RunTx, relayed")
	}
}
