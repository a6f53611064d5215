package simulate

import (
	"fmt"
	"testing/synctest"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// end lets faults end, has everybody ask again, and judges the whole.
func (w *world) end(seed uint64) Report {
	if w.settle(); w.violation == "" {
		w.calm()
	}
	if w.violation == "" {
		w.atLast()
	}
	if w.violation == "" {
		w.add()
	}
	w.close()
	return Report{Seed: seed, Violation: w.violation, Detail: w.detail, Hash: w.hash, Count: w.count, Log: w.log, setup: w.setup, script: w.script}
}

// atLast has everybody ask again.
func (w *world) atLast() {
	if w.setup.work {
		w.finish()
		return
	}
	w.askAgain()
}

// add adds up.
func (w *world) add() {
	if w.setup.work {
		w.compareWork()
		return
	}
	w.compare()
}

// calm delivers everything until every record is at rest and no client waits.
func (w *world) calm() {
	w.note("faults end")
	late := sorted(w.late)
	w.late = nil
	for _, c := range late {
		if w.setup.arrive || c.kind == abort {
			_ = w.carryOut(c, "late: ") // no caller receives the reply
		}
	}
	w.open(maxProcesses)
	for range restIn {
		w.deliverAll()
		if w.violation != "" || w.atRest() && w.active == 0 {
			return
		}
		w.pass()
	}
	w.deliverAll()
	if !w.atRest() {
		w.violate("a record is not at rest", fmt.Sprintf("%d quanta after faults ended", restIn))
	}
	if w.active > 0 {
		w.violate("a client hangs", fmt.Sprintf("%d quanta after faults ended", restIn))
	}
}

// deliverAll delivers what waits, one by one, until nothing does.
func (w *world) deliverAll() {
	for w.settle(); w.violation == ""; w.settle() {
		if w.hearHangUps() {
			continue
		}
		if len(w.pending) == 0 {
			return
		}
		w.meetAll(sorted(w.pending)[0], deliver)
	}
}

func (w *world) atRest() bool {
	for key := range w.setup.keys {
		if w.judge.seen[key].rec.State == store.Running {
			return false
		}
	}
	return true
}

// askAgain has clients ask for every key, with the earlier request and with
// another one.
func (w *world) askAgain() {
	for key := range w.setup.keys {
		was := w.judge.seen[key].rec
		for _, last := range w.last(int8(key)) {
			w.note("at last %v", last)
			w.ask(w.processes[maxProcesses], last, true)
			w.deliverAll()
			if w.active > 0 {
				w.violate("a client hangs", "though nothing runs and nothing fails")
				return
			}
		}
		if is := w.judge.seen[key].rec; was.State.Settled() && is.Fence != was.Fence {
			w.violate("a settled operation ran again", fmt.Sprintf("key %d, fence %d after %d", key, is.Fence, was.Fence))
		}
	}
}

// last are the clients that ask for a key in the end.
func (w *world) last(key int8) []client {
	if w.setup.transactions { // after one, with its remains in its process
		return []client{{key: key, api: true, tx: true}, {key: key, print: 1, api: true}, {key: key, tx: true}}
	}
	return []client{{key: key, api: true}, {key: key, print: 1, api: true}}
}

// compare compares all replies with the effects.
func (w *world) compare() {
	for key := range w.setup.keys {
		l, rec := w.ledgers[key], w.judge.seen[key].rec
		accuse := func(violation string) {
			w.violate(violation, fmt.Sprintf("key %d is %v, %q; effects: %+v", key, rec.State, rec.Result.Body, l.made))
		}
		switch {
		case rec.State == store.Completed && !l.has(stands(rec)):
			accuse("success without an effect")
		case (rec.State == store.None || rec.State == store.Retryable) && len(l.made) > 0:
			accuse("an effect was forgotten")
		case rec.State == store.Unknown && w.setup.class != "unknown":
			accuse("unknown, though the policy resolves that")
		}
		for _, m := range l.made {
			for _, t := range w.told {
				if t.n == m.client && t.exec == stet.NotExecuted {
					accuse(fmt.Sprintf("client %d got the reply that nothing was executed", t.n))
				}
			}
		}
	}
}

func (l ledger) has(text string) bool {
	for _, m := range l.made {
		if m.text == text {
			return true
		}
	}
	return false
}

// close ends all processes, so that no goroutine is left.
func (w *world) close() {
	for _, p := range w.all {
		w.kill(p)
	}
	for _, p := range w.all {
		p.engine.Close() //nolint:errcheck // always nil
	}
	for synctest.Wait(); w.active > 0; synctest.Wait() {
		w.pass()
	}
}
