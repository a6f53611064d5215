package stet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

const (
	maxHistoryQueue = 256             // entries that wait to be written; further ones are left out
	historyTimeout  = 2 * time.Second // for one entry, and for all that remain at Close
	historyRepeats  = time.Minute     // an equal entry within this time is left out
	maxHistoryText  = 500             // bytes of a text
)

// history writes entries in the background, so that it delays no outcome and fails none. One
// goroutine does. It ends when no entry waits.
type history struct {
	to      store.HistoryStore // nil if not supported
	mu      sync.Mutex
	queue   []queuedEntry
	writing bool
	recent  map[recentEntry]time.Time
}

type queuedEntry struct {
	id    store.ID
	entry observe.HistoryEntry
}

// recentEntry tells which entries are equal.
type recentEntry struct {
	id     store.ID
	fence  int64
	event  string
	reason observe.Reason
	text   string
}

// explain sets the Why of an event if something went wrong, and only then.
func (ev *event) explain() {
	switch ev.Kind {
	case observe.MarkedUnknown, observe.Released, observe.Returned, observe.TimedOut, observe.CutOff, observe.LeaseLost,
		observe.Fenced, observe.StoreFailed, observe.Resolved, observe.TakenOver, observe.Cancelled:
		if ev.Why == nil {
			ev.Why = &observe.Why{}
		}
	default:
		return // of a settled run, its Why is set already
	}
	if ev.Why.Reason == "" {
		why := *ev.Why // it may be shared
		why.Reason = reasonOf(ev.Kind, why.Err, ev.Err)
		ev.Why = &why
	}
}

// event is an observe.Event of the engine.
type event observe.Event

// reasonOf returns the reason of an event. Methods of a service's error may panic.
func reasonOf(kind observe.Kind, cause, err error) (reason observe.Reason) {
	switch kind {
	case observe.Fenced:
		return observe.ReasonFenced
	case observe.StoreFailed:
		return observe.ReasonStore
	case observe.Cancelled:
		return observe.ReasonCancelled
	case observe.LeaseLost:
		return observe.ReasonLeaseLost
	case observe.TimedOut:
		return observe.ReasonTimedOut
	case observe.CutOff:
		return observe.ReasonShutDown
	}
	defer func() {
		if recover() != nil {
			reason = observe.ReasonDeclared
		}
	}()
	if cause == nil {
		cause = err
	}
	switch {
	case errors.Is(cause, ErrLeaseLost):
		return observe.ReasonLeaseLost
	case errors.Is(cause, ErrClosed):
		return observe.ReasonShutDown
	case errors.Is(cause, ErrCancelled):
		return observe.ReasonCancelled
	case errors.Is(cause, ErrRunTimeout):
		return observe.ReasonTimedOut
	}
	return observe.ReasonOf(cause)
}

// remember queues an entry for an event with a Why. Events of a call without a claim have no fence.
func (e *Engine) remember(ev observe.Event) {
	if e.history.to == nil || ev.Why == nil || ev.Fence == 0 || ev.ID == (store.ID{}) {
		return
	}
	if ev.Kind == observe.StoreFailed && ev.Attempt == 0 { // the attempt is not known, and an entry of the first deletes others
		return
	}
	entry := observe.HistoryEntry{Event: ev.Kind.String(), Reason: ev.Why.Reason, Attempt: ev.Attempt, Fence: ev.Fence, Status: ev.Why.Status,
		Error: errorText(ev.Why.Err, ev.Err), By: cutText(ev.Why.By), Text: cutText(ev.Why.Text)}
	entry.Host, entry.Process = thisHost(), os.Getpid()
	if ev.Why.Owner != (store.Owner{}) {
		entry.Host, entry.Process, _ = ev.Why.Owner.Process()
	}
	h, now := &e.history, time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	key := recentEntry{ev.ID, ev.Fence, entry.Event, entry.Reason, entry.Text}
	if last, ok := h.recent[key]; len(h.queue) >= maxHistoryQueue || ok && now.Sub(last) < historyRepeats {
		return
	}
	if h.recent == nil || len(h.recent) >= maxHistoryQueue {
		h.recent = make(map[recentEntry]time.Time)
	}
	h.recent[key] = now
	entry.At = now.UTC()
	h.queue = append(h.queue, queuedEntry{ev.ID, entry})
	if !h.writing {
		h.writing = e.background(e.writeHistory) // of a closed engine, Close writes what waits
	}
}

var thisHost = sync.OnceValue(func() string {
	host, _ := os.Hostname()
	return cutText(host)
})

// errorText returns the text of the errors. A method of an error may panic.
func errorText(errs ...error) (text string) {
	defer func() {
		if recover() != nil {
			text = "its error has no text: its method panicked"
		}
	}()
	if err := errors.Join(errs...); err != nil {
		text = err.Error()
	}
	return cutText(text)
}

// cutText returns the start of a text, in one line.
func cutText(text string) string {
	if len(text) > maxHistoryText {
		text = text[:maxHistoryText]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// writeHistory writes the queue until it is empty, or the engine is closed.
func (e *Engine) writeHistory(ctx context.Context) {
	for {
		h := &e.history
		h.mu.Lock()
		if len(h.queue) == 0 || ctx.Err() != nil {
			h.writing = false
			h.mu.Unlock()
			return
		}
		q := h.queue[0]
		h.queue = h.queue[1:]
		h.mu.Unlock()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), historyTimeout)
		e.writeEntry(bounded, q)
		cancel()
	}
}

// flushHistory writes what waits when the engine is closed.
func (e *Engine) flushHistory() {
	ctx, cancel := context.WithTimeout(context.Background(), historyTimeout)
	defer cancel()
	e.writeHistory(ctx)
}

// writeEntry writes an entry. If the store fails, the history lacks it.
func (e *Engine) writeEntry(ctx context.Context, q queuedEntry) {
	packed, err := json.Marshal(q.entry)
	if err == nil {
		_ = e.history.to.AddHistory(ctx, q.id, store.HistoryEntry{Fence: q.entry.Fence, Attempt: q.entry.Attempt, Data: e.sealer.wrap(q.id, sealedHistory, packed)})
	}
}

// Explain states what went wrong, for the log and the history of the operation. It does not end
// the run. A field that is set stays. If nothing is explained, the error of the handler is the
// explanation.
func (r *Run) Explain(why observe.Why) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := why
	if r.why != nil {
		all = *r.why
		all.Reason, all.Status, all.Text = cmp.Or(all.Reason, why.Reason), cmp.Or(all.Status, why.Status), cmp.Or(all.Text, why.Text)
		if all.Err == nil {
			all.Err = why.Err
		}
	}
	r.why = &all
}

// explanation returns what went wrong; nil if nothing is known. A settled run has an explanation if
// its handler did not choose the outcome.
func (r *Run) explanation(kind observe.Kind) *observe.Why {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == observe.Settled && r.why != nil && r.why.Reason != observe.ReasonPanicked && r.why.Reason != observe.ReasonExhausted {
		return nil
	}
	return r.why
}

// explainOutcome explains an outcome that the handler did not choose.
func (r *Run) explainOutcome(out Outcome) {
	switch out.Reason {
	case store.ReasonPanicked:
		r.Explain(observe.Why{Reason: observe.ReasonPanicked})
	case store.ReasonExhausted:
		r.Explain(observe.Why{Reason: observe.ReasonExhausted})
	}
}

// leavesNoRecord states that the release deletes the record, and with it the history.
func (r *Run) leavesNoRecord() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noRecord = true
}

// observe reports an event of the run. If its record was deleted, there is no history.
func (r *Run) observe(ctx context.Context, ev observe.Event) {
	r.mu.Lock()
	deleted := r.noRecord && ev.Kind == observe.Released
	r.mu.Unlock()
	if deleted {
		(*event)(&ev).explain()
		r.e.report(ctx, ev)
		return
	}
	r.e.observe(ctx, ev)
}

// History returns the last entries of the history of each of recs, oldest first, at most most of
// each. An abandoned run, which has stored nothing, has an entry of the event lease_expired, made
// of its record. The error is an *Error of KindInvalid (the store has no histories) or KindStore.
func (e *Engine) History(ctx context.Context, most int, recs ...store.Record) ([][]observe.HistoryEntry, error) {
	if e.history.to == nil {
		return nil, invalid("the store %T has no histories", e.store)
	}
	ids := make([]store.ID, len(recs))
	for i, rec := range recs {
		ids[i] = rec.ID
	}
	stored, err := e.history.to.History(e.storeContext(ctx), ids, most)
	if err != nil || len(stored) != len(recs) {
		return nil, storeFailed(NotExecuted, errors.Join(err, fmt.Errorf("it returned %d of %d histories", len(stored), len(recs))))
	}
	all := make([][]observe.HistoryEntry, len(recs))
	for i, rec := range recs {
		for _, s := range store.HistoryOf(rec, stored[i]) {
			all[i] = append(all[i], e.openEntry(rec.ID, s))
		}
		all[i] = addExpired(rec, all[i])
		all[i] = all[i][max(0, len(all[i])-most):]
	}
	return all, nil
}

// openEntry is the reverse of writeEntry.
func (e *Engine) openEntry(id store.ID, s store.HistoryEntry) (entry observe.HistoryEntry) {
	packed, err := e.sealer.unwrap(id, sealedHistory, s.Data)
	if err == nil {
		err = json.Unmarshal(packed, &entry)
	}
	if err != nil {
		entry = observe.HistoryEntry{Sealed: true}
	}
	entry.At, entry.Fence, entry.Attempt = s.At.UTC(), s.Fence, s.Attempt
	return entry
}

// addExpired adds the entry of an abandoned run, before the attempts to resolve it.
func addExpired(rec store.Record, all []observe.HistoryEntry) []observe.HistoryEntry {
	if rec.InTx || rec.State != store.Unknown && (rec.State != store.Running || rec.LeaseLeft > 0) {
		return all
	}
	first := len(all) // of the entries of others about this claim
	for first > 0 && all[first-1].Fence == rec.Fence {
		if entry := all[first-1]; entry.Event != observe.Resolved.String() {
			return all // the run has stored what went wrong
		}
		first--
	}
	entry := observe.HistoryEntry{At: rec.SettledAt.UTC(), Event: "lease_expired", Reason: observe.ReasonGone, Attempt: rec.Attempt, Fence: rec.Fence}
	entry.Host, entry.Process, _ = rec.Owner.Process()
	if rec.State == store.Running {
		entry.At = time.Now().Add(rec.LeaseLeft).UTC()
	}
	return slices.Insert(all, first, entry)
}
