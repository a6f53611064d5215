package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// wrongWork is wrong for the record of an accepted operation.
func (w *world) wrongWork(c *call, key int, before, after seen) string {
	a, b := before.rec, after.rec
	if what := w.wrongKept(c, key, a, b); what != "" {
		return what
	}
	switch {
	case a.State == b.State && a.Fence == b.Fence:
		if after.leaseEnd != before.leaseEnd && (c.kind != extend || c.fences[key] != a.Fence) {
			return "a lease was renewed for another owner"
		}
		return ""
	case b.State == store.Accepted && a.State == store.None:
		return w.wrongAccept(c, a, b)
	case b.State == store.Running:
		return w.wrongTake(c, a, b)
	case b.Fence != a.Fence:
		return "a fence was given out without a claim"
	case b.State == store.Unknown:
		return w.wrongPark(c, key, before)
	}
	return w.wrongWorkEnd(c, key, a, b)
}

func (w *world) wrongAccept(c *call, a, b store.Record) string {
	w.office.accepted[c.key] = time.Since(w.start)
	w.count.Accepted++
	switch {
	case c.kind != accept && c.kind != workCommit:
		return "accepted by a call that does not accept"
	case b.Owner != c.owner || b.Fingerprint != c.print || b.Fence <= a.Fence:
		return "accepted without an owner, for another fingerprint, or without a fence"
	}
	return ""
}

func (w *world) wrongTake(c *call, a, b store.Record) string {
	w.count.Grants++
	switch _, ok := a.State.Next(store.VerbTake); {
	case !ok:
		return "a claim was granted where there is no arrow"
	case c.kind != take || b.Owner != c.owner:
		return "a claim was granted without an owner"
	case a.Owner == c.owner:
		return "an owner was granted a second claim"
	case b.Fence <= a.Fence || b.Attempt != a.Attempt+1:
		return "a claim was granted without a new fence, or attempt"
	}
	return ""
}

// wrongWorkEnd judges the end of a run, or of the waiting for one.
func (w *world) wrongWorkEnd(c *call, key int, a, b store.Record) string {
	verb, ok := store.VerbComplete, c.kind == settle || c.kind == workCommit
	switch {
	case b.State == store.Accepted:
		verb, ok = store.VerbReturn, c.kind == giveBack || c.kind == release
		w.count.Returned++
	case b.State == store.Failed && a.State == store.Accepted:
		verb, ok = store.VerbCancel, c.kind == cancel
		w.count.Cancelled++
		w.office.unbegun[key] = a.Attempt == 0
	case b.State == store.Failed:
		verb = store.VerbFail
	}
	switch to, arrow := a.State.Next(verb); {
	case !arrow || to != b.State:
		return "ended where there is no arrow"
	case !ok || c.fence != a.Fence:
		return "a stale fence wrote"
	}
	return ""
}

// wrongKept judges the work, notes and messages of a record.
func (w *world) wrongKept(c *call, key int, a, b store.Record) string {
	same := bytes.Equal(a.Work, b.Work) && (!a.State.Settled() || bytes.Equal(a.Outbox, b.Outbox))
	switch {
	case a.State == store.None:
		return ""
	case a.State.Settled() && !same && (c.kind != relayed || c.fence != a.Fence || b.Outbox != nil):
		return "messages changed"
	case a.State.Settled() && !same:
		w.count.Relayed++
		return w.wrongRelayed(key, a)
	case b.State.Settled():
		return "" // it keeps messages instead
	case !same:
		return "work changed"
	case a.Notes.Version != b.Notes.Version || !bytes.Equal(a.Notes.Data, b.Notes.Data):
		return wrongNotes(c, a, b)
	case b.Cancelling && !a.Cancelling && (c.kind != cancel || c.fence != a.Fence):
		return "a cancellation without a request"
	case a.Cancelling && !b.Cancelling:
		return "a cancellation was forgotten"
	}
	return ""
}

func wrongNotes(c *call, a, b store.Record) string {
	in := store.Running
	if c.kind == amend {
		in = store.Unknown
	}
	switch {
	case c.kind != save && c.kind != amend && c.kind != workCommit || c.fence != a.Fence:
		return "a stale fence wrote notes"
	case a.State != in:
		return "notes were written without a run, or amended beside one"
	case b.Notes.Version <= a.Notes.Version:
		return "notes were replaced by older ones"
	}
	for x := range parts {
		if done := fmt.Appendf(nil, `"%s":{"done":true`, partNames[x]); bytes.Contains(a.Notes.Data, done) && !bytes.Contains(b.Notes.Data, done) {
			return "a step that was done was forgotten"
		}
	}
	return ""
}

// wrongRelayed judges the end of relaying: the broker has all messages by then.
func (w *world) wrongRelayed(key int, rec store.Record) string {
	if fence, n, ok := settledBy(rec); ok && !w.sentAll(key, fence, n) {
		return "messages were removed before they were sent"
	}
	return ""
}

func (w *world) sentAll(key int, fence int64, n int) bool {
	sent := make(map[string]bool)
	for _, body := range w.office.sent[key] {
		sent[body] = true
	}
	for i := range n {
		if !sent[fmt.Sprintf("%d#%d", fence, i)] {
			return false
		}
	}
	return len(sent) == n
}

// hearWork judges a reply to a client of accepted operations. The caller holds
// mu.
func (w *world) hearWork(t told) {
	rec := w.judge.seen[t.key].rec
	w.mix(uint64(t.n)<<8 | uint64(len(t.text)) | uint64(t.status.Record.State)<<32)
	accuse := func(violation string) {
		w.violate(violation, fmt.Sprintf("%v: %v, while the record is %v, %q", t, t.status.Record.State, rec.State, stands(rec)))
	}
	other := rec.State != store.None && rec.Fingerprint != fingerprints[t.print]
	since := w.office.accepted[t.key]
	switch st := t.status; {
	case t.role == spies && (st.Record.State != store.None || st.Name != "" || len(st.Outcome.Body) > 0 || st.Outcome.Failed || t.err != nil && !excused(t.kind)):
		accuse("an operation was shown to another scope")
	case t.role == spies:
	case t.role == accepts && (other && t.err == nil || !other && t.kind == stet.KindMismatch):
		accuse("the wrong request was refused")
	case t.role == accepts && t.err == nil && rec.State == store.None:
		accuse("an acceptance that is not durable")
	case t.role == accepts && t.err == nil && st.New && (since < t.came || rec.ClaimedAt.Before(w.start.Add(t.came))):
		accuse("an operation was accepted twice")
	case t.err == nil && t.role == looks && st.Record.State == store.None && rec.State != store.None && since < t.came:
		accuse("an accepted operation was not found")
	case t.err == nil && st.Record.State.Settled() && (rec.State != st.Record.State || outcomeText(st.Outcome) != stands(rec)),
		t.outcome && (t.err == nil || t.kind == stet.KindFailed) && (!rec.State.Settled() || t.text != timedOut && stands(rec) != t.text):
		accuse("a returned outcome is not the stored one")
	case t.role == cancels && t.err == nil && (st.Record.State == store.Accepted || st.Record.State == store.Running) && !st.Record.Cancelling:
		accuse("a cancellation was ignored")
	case t.kind == stet.KindUnknown:
		w.count.Unknown++
	case t.kind == stet.KindDamaged, t.kind == stet.KindExpired:
		accuse("an answer without a reason")
	}
	if t.last && t.role == accepts && t.print == printOf(rec) && rec.State != store.None && t.err != nil {
		accuse("a last answer that does not help")
	}
}

// excused reports whether an answer says nothing about the operation.
func excused(kind stet.Kind) bool {
	return kind == stet.KindStore || kind == stet.KindClosed || kind == stet.KindInvalid
}

func outcomeText(out stet.Outcome) string {
	text, err := said(out)
	if e, ok := errors.AsType[*stet.Error](err); ok {
		if text = e.Cause.Error(); text == timedOut {
			text = ""
		}
	}
	return text
}

// lastRounds is within how many quanta, at one round of work in each, everything
// has ended after the faults: waiting and returned operations,
// twice for an operation that was unknown, and a verifier that does not know yet.
const lastRounds = 9

// finish has every operation run and every message sent, and everybody ask.
func (w *world) finish() {
	w.workOff()
	for key := range w.setup.keys {
		for _, c := range []client{{role: looks}, {role: spies}, {role: accepts, print: printOf(w.judge.seen[key].rec)}} {
			if c.key = int8(key); w.judge.seen[key].rec.State == store.None {
				break
			}
			w.ask(w.processes[maxProcesses], c, true)
			w.deliverAll()
		}
	}
	w.workOff() // operations released since
	if w.active > 0 {
		w.violate("a client hangs", "though nothing runs and nothing fails")
	}
}

// workOff works until everything is over.
func (w *world) workOff() {
	p := w.processes[maxProcesses]
	for round := 0; round < lastRounds && !w.over(); round++ {
		clients := []client{{role: works}, {role: relays}}
		for key := range w.setup.keys {
			if w.judge.seen[key].rec.State == store.Unknown {
				clients = append([]client{{role: works, key: int8(key), api: true}}, clients...)
			}
		}
		for _, c := range clients {
			w.note("at last %s", c.work())
			w.ask(p, c, true)
			if w.deliverAll(); w.violation != "" {
				return
			}
		}
		w.pass()
	}
}

// over reports whether no record waits for anything that its policy promises.
func (w *world) over() bool {
	for key := range w.setup.keys {
		switch rec := w.judge.seen[key].rec; {
		case rec.State == store.Accepted, rec.State == store.Running, rec.State.Settled() && rec.Outbox != nil, rec.State == store.Unknown && w.resolvable(rec):
			return false
		}
	}
	return w.active == 0
}

// compareWork compares the records of accepted operations with all that was done.
func (w *world) compareWork() {
	for key := range w.setup.keys {
		s, o := w.judge.seen[key], w.office
		rec, all := s.rec, o.made[key]
		all[outside] = w.ledgers[key].made
		accuse := func(violation string) {
			w.violate(violation, fmt.Sprintf("key %d is %v, %q; effects: %+v; sent: %v", key, rec.State, stands(rec), all, o.sent[key]))
		}
		fence, n, ran := settledBy(rec)
		for _, x := range []part{once, inStep, finishing, ordering} {
			if len(all[x]) > 1 {
				accuse("two effects where one is promised: " + partNames[x])
			}
		}
		switch {
		case rec.State == store.None && slices.ContainsFunc(all[:], func(m []made) bool { return len(m) > 0 }):
			accuse("an effect was forgotten")
		case rec.State == store.Accepted || rec.State == store.Running:
			accuse("an accepted operation does not run")
		case rec.State == store.Unknown && w.resolvable(rec):
			accuse("unknown, though the policy resolves that")
		case o.unbegun[key] && slices.ContainsFunc(all[:ordering], func(m []made) bool { return len(m) > 0 }):
			accuse("a cancelled operation ran, though it had not begun")
		case rec.State == store.Completed && ran && !w.complete(all, fence):
			accuse("success without an effect")
		case len(all[finishing]) > 0 && (!ran || !hasBy(all[finishing], fence)):
			accuse("a transaction was committed without its outcome")
		case ran && !w.sentAll(key, fence, n):
			accuse("a message was never sent, or was never emitted")
		}
	}
}

// resolvable reports whether the policy does not leave such a record unknown.
func (w *world) resolvable(rec store.Record) bool {
	switch w.setup.class {
	case "unknown":
		return false
	case "take over": // unless a step is unknown
		return !bytes.Contains(rec.Notes.Data, []byte(`"once":{}`))
	}
	return true
}

// complete reports whether what a successful run stands for has happened.
func (w *world) complete(all [parts][]made, fence int64) bool {
	for _, x := range []part{outside, repeated, once, inStep} {
		if w.setup.program.has(x) && len(all[x]) == 0 {
			return false
		}
	}
	return !w.setup.program.has(finishing) || hasBy(all[finishing], fence)
}
