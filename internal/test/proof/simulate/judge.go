package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// seen is a record as the memory store has it.
type seen struct {
	rec      store.Record
	leaseEnd time.Duration // since the world began; of a running record
}

// judge has the known facts about the records.
type judge struct {
	seen   [maxKeys]seen
	marked [maxKeys][]int64 // fences whose lease had run out when they were marked unknown
	// refused are the clients whose claim was answered as a mismatch.
	refused [maxClients + 1 + 3*maxKeys]bool
	tried   [maxKeys][2]tried // by fingerprint; guarded by the world's mu
}

// tried are the transactions that were tried of one key and fingerprint.
type tried struct {
	going int
	any   bool
	last  time.Duration // when the last one ended, or its end was known
}

func (j *judge) transact(t *txn, change int, now time.Duration) {
	print := slices.Index(fingerprints[:], t.req.Fingerprint)
	tr := &j.tried[t.key][print]
	tr.going += change
	tr.any = true
	tr.last = now
}

// inTheWay reports whether, since t came, there was a transaction that asked for
// the other thing. The caller holds mu.
func (w *world) inTheWay(t told) bool {
	if holder := w.txns[t.key]; holder != nil && holder.req.Fingerprint != fingerprints[t.print] {
		return true
	}
	tr := w.judge.tried[t.key][1-t.print]
	return tr.any && (tr.going > 0 || tr.last >= t.came)
}

// look reads the record of a key, past any defect.
func (w *world) look(key int) seen {
	rec, err := w.record(ids[key])
	if err != nil {
		panic(err)
	}
	s := seen{rec: rec}
	if rec.State == store.Running {
		s.leaseEnd = time.Since(w.start) + rec.LeaseLeft
	}
	return s
}

// record returns what the memory store has of a record.
func (w *world) record(id store.ID) (store.Record, error) {
	if w.setup.work {
		return w.truth.Look(context.Background(), id)
	}
	return w.truth.Read(context.Background(), id)
}

// inspect judges what a call has done to the records.
func (w *world) inspect(c *call, err error) {
	for key := range w.setup.keys {
		before, after := w.judge.seen[key], w.look(key)
		w.judge.seen[key] = after
		w.mix(uint64(after.rec.State)<<32 | uint64(after.rec.Fence))
		if c.kind != extend && c.kind != sweep && c.kind != effect && c.kind != verify && int(c.key) != key {
			if after.rec.State != before.rec.State || after.rec.Fence != before.rec.Fence {
				w.violate("another key changed", c.String())
			}
			continue
		}
		if what := w.wrong(c, key, before, after); what != "" {
			w.violate(what, fmt.Sprintf("%v: from %v, fence %d, to %v, fence %d", c, before.rec.State, before.rec.Fence, after.rec.State, after.rec.Fence))
		}
	}
	switch c.kind {
	case effect, commit: // of work, those outside of steps
		w.effects(c, err)
	case claim, enter, accept:
		a := w.judge.seen[c.key].rec // a claim never changes the fingerprint, see wrong
		if errors.Is(err, errAborted) {
			return // it was not even looked at
		}
		if other := a.State != store.None && a.Fingerprint != c.print; other != (stet.KindOf(err) == stet.KindMismatch) {
			w.violate("another request was not refused", fmt.Sprintf("%v: %v", c, err))
		}
	}
}

// wrong says what a call must not have done to a record, "" if nothing.
func (w *world) wrong(c *call, key int, before, after seen) string {
	a, b := before.rec, after.rec
	switch {
	case b.Fence < a.Fence:
		return "the fence fell"
	case a.State != store.None && b.State == store.None:
		return "a record was forgotten"
	case a.State != store.None && a.Fingerprint != b.Fingerprint:
		return "the fingerprint changed"
	case a.State.Settled() && (b.State != a.State || !a.Result.Equal(b.Result) || b.Gone != a.Gone):
		return "a settled outcome changed"
	case w.setup.work:
		return w.wrongWork(c, key, before, after)
	case a.State == b.State && a.Fence == b.Fence:
		if after.leaseEnd != before.leaseEnd && (c.kind != extend || c.fences[key] != a.Fence) {
			return "a lease was renewed for another owner"
		}
		return ""
	case c.kind == commit:
		return wrongCommit(c, a, b)
	case b.State == store.Running:
		return w.wrongGrant(c, a, b)
	case b.Fence != a.Fence:
		return "a fence was given out without a claim"
	case b.State == store.Unknown:
		return w.wrongPark(c, key, before)
	}
	return wrongEnd(c, a, b)
}

func (w *world) wrongGrant(c *call, a, b store.Record) string {
	w.count.Grants++
	if _, ok := a.State.Next(store.VerbClaim); !ok {
		return "a claim was granted where there is no arrow"
	}
	if c.kind != claim || a.State != store.None && c.print != a.Fingerprint {
		return "a claim was granted without an owner, or for another fingerprint"
	}
	if b.Fence == a.Fence {
		return "a claim was granted without a new fence"
	}
	if a.State == store.Retryable && c.owner == a.Owner {
		return "an owner was granted a second claim"
	}
	return ""
}

func (w *world) wrongPark(c *call, key int, before seen) string {
	if _, ok := before.rec.State.Next(store.VerbMarkUnknown); !ok {
		return "marked unknown where there is no arrow"
	}
	if c.kind != claim && c.kind != sweep && c.kind != enter && c.kind != take && c.kind != accept {
		return "marked unknown by a call that never does that"
	}
	if time.Since(w.start) < before.leaseEnd {
		return "marked unknown under a live lease"
	}
	w.judge.marked[key] = append(w.judge.marked[key], before.rec.Fence)
	return ""
}

func wrongCommit(c *call, a, b store.Record) string {
	verb := store.VerbCommit
	if b.State == store.Failed {
		verb = store.VerbCommitFailure
	}
	switch to, ok := a.State.Next(verb); {
	case !ok || to != b.State:
		return "committed where there is no arrow"
	case b.Fence <= a.Fence:
		return "committed without a new fence"
	case b.Owner != c.owner || a.State != store.None && c.print != a.Fingerprint:
		return "committed without an owner, or for another fingerprint"
	}
	return ""
}

func wrongEnd(c *call, a, b store.Record) string {
	verb, by := store.VerbComplete, settle
	switch b.State {
	case store.Failed:
		verb = store.VerbFail
	case store.Retryable:
		verb, by = store.VerbRelease, release
	}
	if to, ok := a.State.Next(verb); !ok || to != b.State {
		return "ended where there is no arrow"
	}
	if c.kind != by || c.fence != a.Fence {
		return "a stale fence wrote"
	}
	return ""
}

// effects judges a new effect.
func (w *world) effects(c *call, err error) {
	if err != nil || c.part != outside {
		return
	}
	l := w.ledgers[c.key]
	if len(l.made) < 2 {
		return
	}
	if w.setup.class != "take over" {
		w.violate("two effects", fmt.Sprintf("%v, after one under fence %d", c, l.made[0].fence))
		return
	}
	var newest int64
	for i, m := range l.made {
		newest = max(newest, m.fence)
		for _, o := range l.made[:i] {
			if o.fence == m.fence {
				w.violate("two effects", fmt.Sprintf("fence %d had two", m.fence))
			}
		}
	}
	for _, m := range l.made {
		if m.fence != newest && !w.judge.lapsed(c.key, m.fence) {
			w.violate("two effects", fmt.Sprintf("%v, though the lease of fence %d never ran out", c, m.fence))
		}
	}
}

func (j *judge) lapsed(key int8, fence int64) bool {
	for _, f := range j.marked[key] {
		if f == fence {
			return true
		}
	}
	return false
}

// hear judges a reply when it is sent: it must
// be in the store by then. The caller holds mu.
func (w *world) hear(t told) {
	if t.role != asks {
		w.hearWork(t)
		return
	}
	rec := w.judge.seen[t.key].rec
	w.mix(uint64(t.n)<<8 | uint64(len(t.text)))
	other := rec.State != store.None && rec.Fingerprint != fingerprints[t.print]
	accuse := func(violation string) {
		w.violate(violation, fmt.Sprintf("%v, while the record is %v, %q", t, rec.State, rec.Result.Body))
	}
	outcome := t.err == nil || t.kind == stet.KindFailed
	switch {
	case (other && t.meets && !w.setup.transactions || t.against) && !t.process.closed && t.kind == stet.KindInFlight && t.came == time.Since(w.start):
		// It followed the run of its own process, which knows better.
		accuse("another request was not refused")
	case w.judge.refused[t.n] && t.kind != stet.KindMismatch:
		accuse("another request was not refused")
	case t.kind == stet.KindMismatch:
		w.count.Mismatches++
		if stood := rec.State.Settled() && rec.SettledAt.Sub(w.start) < t.came; !other && (stood || !w.inTheWay(t)) {
			accuse("refused as another request")
		}
	case t.tx && !t.ran && t.kind == stet.KindRetryable:
		accuse("got the end of another run")
	case other && (outcome || t.kind == stet.KindExpired ||
		!t.ran && (t.kind == stet.KindUnknown || t.kind == stet.KindRetryable)):
		accuse("another request was not refused")
	case outcome:
		w.count.Replays++
		want := store.Completed
		if t.err != nil {
			want = store.Failed
		}
		if text := stands(rec); rec.State != want || text != t.text && (t.text != timedOut || text != "") {
			accuse("a returned outcome is not the stored one")
		}
	case t.kind == stet.KindUnknown:
		w.count.Unknown++
	case t.kind == stet.KindInvalid && t.tx && t.leaves: // it left before anything was done
	case t.kind == stet.KindDamaged, t.kind == stet.KindInvalid, t.kind == stet.KindExpired:
		accuse("an answer without a reason")
	}
	if t.last {
		w.hearLast(t, rec, other)
	}
}

// stands is the text of a record's outcome.
func stands(rec store.Record) string {
	if !rec.State.Settled() || rec.Gone {
		return ""
	}
	// The head is version, checksum, adapter, reason, no type, no fields and no trace.
	head := rec.Result.Head
	if len(head) != 11 || head[0] != 1 {
		return fmt.Sprintf("unreadable: %x", head)
	}
	return outcomeText(stet.Outcome{Failed: rec.State == store.Failed, Reason: store.Reason(head[6]), Body: rec.Result.Body})
}

// hearLast judges the answer of a client that came after all faults.
func (w *world) hearLast(t told, rec store.Record, other bool) {
	ok := t.err == nil || t.kind == stet.KindFailed
	switch {
	case other:
		ok = t.kind == stet.KindMismatch
	case rec.State == store.Unknown:
		ok = t.kind == stet.KindUnknown && w.setup.class == "unknown"
	}
	if !ok {
		w.violate("a last answer that does not help", fmt.Sprintf("%v, while the record is %v", t, rec.State))
	}
}
