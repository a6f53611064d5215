package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/lapse"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Stage is the time of an Entry.
type Stage string

// The stages.
const (
	Begun  Stage = "begun"   // the resolution is about to be carried out
	Done   Stage = "done"    // and was
	Failed Stage = "failed"  // and was not: Entry.Err
	Left   Stage = "left"    // the verifier cannot know; nothing was changed
	DryRun Stage = "dry run" // it would have been carried out
)

// Entry is a line of the audit. It has no key but that in Status.Op.
type Entry struct {
	Stage      Stage
	Status     stet.Status // as the verifier got it
	Resolution store.State // its next state, see stet.Resolution.State
	Err        error       // why it failed, or could not be verified
}

// one resolves a record.
func (p *pass) one(ctx context.Context, shown store.Record) {
	r := p.r
	defer func() { // of a verifier, or another function of Options
		if v := recover(); v != nil {
			p.fail(ctx, stet.Status{Record: shown}, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	st, err := r.engine.Lookup(ctx, shown.ID)
	waits := shown.State == store.Accepted && st.Record.State == store.Accepted
	switch {
	case err != nil:
		p.fail(ctx, stet.Status{Record: shown}, err)
		return
	case !dead(st.Record) && !waits || st.Record.Fence != shown.Fence:
		p.count(func(rep *Report) { rep.Changed++ })
		return
	}
	if r.o.Select != nil && !r.o.Select(st) || !r.pace.wait(ctx) {
		return
	}
	class := st.Op.Class
	policy, ok := r.engine.Policy(class)
	if !ok {
		p.fail(ctx, st, fmt.Errorf("there is no class %q among Options.Classes", class))
		return
	}
	if st.Record.State == store.Running && !r.o.DryRun {
		// Before the verifier is called: a run that is still alive can then store nothing,
		// and the record stays as the verifier gets it.
		if st, err = r.end(ctx, st, class); err != nil {
			p.fail(ctx, st, err)
			return
		}
		if !dead(st.Record) || st.Record.Fence != shown.Fence {
			p.count(func(rep *Report) { rep.Changed++ })
			return
		}
	}
	resolution, err := r.decide(ctx, st, policy)
	switch {
	case ctx.Err() != nil:
		return // an interrupted verifier has no resolution
	case errors.Is(err, errBlind):
		_ = r.o.Audit(ctx, Entry{Stage: Left, Status: st, Resolution: store.Unknown, Err: err})
		p.count(func(rep *Report) { rep.Blind++ })
	case err != nil:
		rec := st.Record
		r.engine.Observe(ctx, observe.Event{Kind: observe.Resolved, ID: rec.ID, Class: class, State: store.Unknown, Fence: rec.Fence, Attempt: rec.Attempt, Err: err})
		_ = r.o.Audit(ctx, Entry{Stage: Left, Status: st, Resolution: store.Unknown, Err: err})
		p.fail(ctx, st, err)
	case resolution.State() == store.Unknown:
		_ = r.o.Audit(ctx, Entry{Stage: Left, Status: st, Resolution: store.Unknown})
		p.count(func(rep *Report) { rep.Left++ })
	default:
		p.carryOut(ctx, st, class, resolution)
	}
}

// carryOut stores a resolution.
func (p *pass) carryOut(ctx context.Context, st stet.Status, class string, v stet.Resolution) {
	r, to := p.r, v.State()
	// Another process may have called its verifier at the same time.
	if now, err := r.engine.Store().Read(ctx, st.Record.ID); err == nil && (now.Fence != st.Record.Fence || !dead(now) && now.State != st.Record.State) {
		p.count(func(rep *Report) { rep.Changed++ })
		return
	}
	if r.o.DryRun {
		_ = r.o.Audit(ctx, Entry{Stage: DryRun, Status: st, Resolution: to})
		p.count(func(rep *Report) { rep.resolved(to) })
		return
	}
	if err := r.o.Audit(ctx, Entry{Stage: Begun, Status: st, Resolution: to}); err != nil {
		p.fail(ctx, st, fmt.Errorf("the audit could not be written: %w", err))
		return
	}
	var err error
	if st.Record.State == store.Accepted {
		err = r.expire(ctx, st)
	} else {
		err = r.engine.Resolve(ctx, st.Record, class, v)
	}
	if stet.KindOf(err) == stet.KindUnknown { // it may not run again, because of an open step
		_ = r.o.Audit(ctx, Entry{Stage: Left, Status: st, Resolution: store.Unknown, Err: err})
		p.count(func(rep *Report) { rep.Left++ })
		return
	}
	if err != nil {
		_ = r.o.Audit(ctx, Entry{Stage: Failed, Status: st, Resolution: to, Err: err})
		if stet.KindOf(err) == stet.KindFenced || stet.KindOf(err) == stet.KindInFlight {
			p.count(func(rep *Report) { rep.Changed++ })
			return
		}
		p.fail(ctx, st, err)
		return
	}
	_ = r.o.Audit(ctx, Entry{Stage: Done, Status: st, Resolution: to})
	p.count(func(rep *Report) { rep.resolved(to) })
}

// count counts a record.
func (p *pass) count(as func(*Report)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Looked++
	as(&p.report)
}

func (p *pass) fail(ctx context.Context, st stet.Status, err error) {
	p.r.o.ErrorLog.WarnContext(ctx, "reconcile: an operation is left unchanged", slog.String("id", st.Record.ID.String()), slog.Any("error", err))
	p.count(func(rep *Report) { rep.Errors++ })
}

// dead reports whether a record's run has expired.
func dead(rec store.Record) bool {
	return rec.State == store.Unknown || rec.State == store.Running && rec.LeaseLeft <= 0
}

// errBlind: the class has a verifier, and the record has neither key nor reference for it.
var errBlind = errors.New("its record has neither the key nor a reference for Verify; see Policy.KeepKey and Options.ByRef")

// decide calls the verifiers. If they cannot know, the policy decides.
func (r *Reconciler) decide(ctx context.Context, st stet.Status, p stet.Policy) (v stet.Resolution, err error) {
	if st.Record.State == store.Accepted { // no verifier is needed
		if p.Stale.State() == store.Failed && st.OpenStep == "" {
			v = p.Stale
		}
		return v, nil
	}
	bounded, cancel := context.WithTimeout(ctx, p.VerifyTimeout)
	defer cancel()
	if r.o.Verify != nil {
		v, err = r.o.Verify(bounded, st)
	}
	// A verifier that searches for an empty key, or an empty reference, finds nothing, and would
	// return ItDidNotHappen.
	if err == nil && v.State() == store.Unknown && p.Verify != nil {
		if st.Op.Key == "" && (!r.o.ByRef || st.Op.Ref == "") {
			return v, errBlind // Policy.Stale is for records about which Verify was called
		}
		v, err = p.Verify(bounded, st)
	}
	switch {
	case err != nil:
		return v, fmt.Errorf("verify: %w", err)
	case v.State() != store.Unknown:
		return v, nil
	case p.Stale.State() == store.Retryable && st.OpenStep != "": // a verifier or an operator must resolve the step
		return v, nil
	}
	return p.Stale, nil
}

// end marks an expired run unknown, before its verifier is called.
func (r *Reconciler) end(ctx context.Context, st stet.Status, class string) (stet.Status, error) {
	rec := st.Record
	p, _ := r.engine.Policy(class)
	now, err := lapse.End(ctx, r.engine.Store(), rec, p.Retention)
	if err != nil && !errors.Is(err, store.ErrFenced) { // fenced: another process was faster
		return st, fmt.Errorf("the lapsed run could not be ended: %w", err)
	}
	if now.State == store.Unknown && now.Fence == rec.Fence {
		r.engine.Observe(ctx, observe.Event{Kind: observe.MarkedUnknown, ID: rec.ID, Class: class, State: store.Unknown, Fence: rec.Fence, Attempt: rec.Attempt,
			Why: &observe.Why{Reason: observe.ReasonGone, Owner: rec.Owner}})
	}
	return r.engine.Lookup(ctx, rec.ID)
}

// expire fails an operation that has waited too long. It takes the operation as a worker does,
// so that no worker runs it.
func (r *Reconciler) expire(ctx context.Context, st stet.Status) error {
	run, err := r.engine.Take(ctx, stet.Item{ID: st.Record.ID, Class: st.Op.Class, Name: st.Name})
	switch {
	case err != nil:
		return err
	case run.Replayed():
		return &stet.Error{Kind: stet.KindFenced, Execution: stet.MayHaveExecuted, Cause: errors.New("it has ended in the meantime")}
	}
	return run.Settle(ctx, stet.Outcome{Failed: true, Reason: store.ReasonTimedOut})
}
