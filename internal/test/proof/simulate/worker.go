package simulate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// work takes an operation, runs it and ends it. A worker that began after the faults
// continues while something is due, a few times.
func (p *process) work(ctx context.Context, t *told) error {
	for again := maxKeys; ; again-- {
		item := stet.Item{ID: ids[t.key], Class: p.w.setup.class, Name: "work"} // from a queue, which repeats itself
		if !t.api {
			items, err := p.engine.Due(ctx, 1, dueAgain)
			if err != nil {
				return err
			}
			if len(items) == 0 {
				return errNothing
			}
			item, t.key = items[0], p.w.key(items[0].ID)
		}
		run, err := p.engine.Take(ctx, item)
		switch {
		case err != nil:
		case run.Replayed():
			t.outcome = true
			t.text, err = said(run.Outcome())
		default:
			err = p.perform(ctx, run, t)
		}
		if !t.last || t.api || again == 0 {
			return err
		}
	}
}

// attempt is a run of an operation.
type attempt struct {
	*process
	run      *stet.Lease
	t        *told
	touched  bool // an effect outside of steps may have happened
	messages int
}

// perform runs an operation, and ends the run as its handler says.
func (p *process) perform(ctx context.Context, run *stet.Lease, t *told) error {
	a := &attempt{process: p, run: run, t: t}
	p.handling(t.key, 1)
	defer p.handling(t.key, -1)
	if got, want := run.Work.Payload, payload(t.key, printOf(store.Record{Fingerprint: run.Op().Fingerprint})); string(got) != string(want) {
		p.accuse("a worker got other work", fmt.Sprintf("%q for %q", got, want))
	}
	out := store.Completed
	err := a.begin(run.Context())
	switch {
	case errors.Is(err, stet.ErrCancelled):
		out = store.Failed
	case err != nil:
		return a.end(ctx, err)
	case t.handler == fails:
		out = store.Failed
	}
	return a.settle(ctx, out, err != nil)
}

// printOf is which of the two requests a record is of.
func printOf(rec store.Record) int8 {
	if rec.Fingerprint == fingerprints[1] {
		return 1
	}
	return 0
}

func (p *process) accuse(violation, detail string) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if !p.dead {
		p.w.violate(violation, detail)
	}
}

// begin carries out the program up to its end.
func (a *attempt) begin(ctx context.Context) error {
	prog := a.w.setup.program
	if a.t.handler == declines && a.t.patient {
		return errReturned
	}
	if a.t.obedient {
		if err := a.checkCancelled(ctx); err != nil {
			return err
		}
	}
	if prog.has(tells) {
		if err := a.run.Progress(ctx, 0.5, "half"); err != nil {
			return err
		}
	}
	if err := a.steps(ctx); err != nil {
		return err
	}
	if a.t.handler == declines || a.t.obedient && ctx.Err() != nil {
		return errReturned
	}
	if !prog.has(outside) {
		return nil
	}
	_, err := a.effect(ctx, outside)
	if err != nil && !errors.Is(err, errRefused) { // it may have happened, or happen yet
		a.touched = true
		a.run.Declare(stet.MayHaveExecuted, 0)
	}
	a.touched = a.touched || err == nil
	return err
}

// obey ends the run of an operation whose cancellation was asked for.
func (a *attempt) checkCancelled(ctx context.Context) error {
	st, err := a.engine.Lookup(ctx, a.run.ID())
	if err != nil || !st.Record.Cancelling || st.Record.Fence != a.run.Fence() {
		return err
	}
	if st.OpenStep != "" { // then failed is not the truth
		a.run.Declare(stet.MayHaveExecuted, 0)
	}
	a.count(func(c *Count) { c.Obeyed++ })
	return stet.ErrCancelled
}

func (a *attempt) count(what func(*Count)) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if !a.dead {
		what(&a.w.count)
	}
}

// steps carries out the program's steps.
func (a *attempt) steps(ctx context.Context) error {
	prog := a.w.setup.program
	if prog.has(repeated) {
		text, err := stet.Step(ctx, "repeated", func(ctx context.Context) (string, error) {
			return a.effect(ctx, repeated)
		})
		if err != nil {
			return err
		}
		a.stepped(a.t.key, "repeated", text)
	}
	if prog.has(once) {
		text, err := stet.StepOnce(ctx, "once", func(ctx context.Context) (string, error) {
			text, err := a.effect(ctx, once)
			if errors.Is(err, errRefused) {
				err = stet.Retryable(err)
			}
			return text, err
		})
		if stet.KindOf(err) == stet.KindUnknown {
			a.count(func(c *Count) { c.OpenSteps++ })
		}
		if err != nil {
			return err
		}
		a.stepped(a.t.key, "once", text)
	}
	if prog.has(inStep) {
		text, err := stet.StepTx(ctx, workStore{a.process}.inTx(), "step", func(_ context.Context, tx *workTx) (string, error) {
			return a.write(tx, inStep), nil
		})
		if err != nil {
			return errors.Join(err, a.run.Progress(ctx, 1, "over")) // which must not undo what may be committed
		}
		a.stepped(a.t.key, "step", text)
	}
	return nil
}

// write is a business write.
func (a *attempt) write(tx *workTx, x part) string {
	text := fmt.Sprintf("%s of %d", partNames[x], a.run.Fence())
	tx.wrote = append(tx.wrote, wrote{x, made{fence: a.run.Fence(), client: a.t.n, text: text}})
	return text
}

// effect has an effect on the other side.
func (a *attempt) effect(ctx context.Context, x part) (text string, err error) {
	if !a.t.obedient {
		ctx = context.WithoutCancel(ctx)
	}
	c := &call{p: a.process, kind: effect, key: a.t.key, fence: a.run.Fence(), part: x}
	c.do = func() (err error) {
		text, err = a.w.effectOf(c, a.t.n)
		return err
	}
	err = c.await(ctx)
	return text, err
}

// effectOf carries out an effect.
func (w *world) effectOf(c *call, client int8) (string, error) {
	o := w.office
	if c.part != repeated && c.fence <= o.ruledOut[c.key] {
		return "", errRefused
	}
	w.count.Effects++
	m := made{fence: c.fence, client: client, text: partNames[c.part] + strconv.Itoa(w.count.Effects)}
	if c.part == outside {
		w.ledgers[c.key].made = append(w.ledgers[c.key].made, m)
		return m.text, nil
	}
	all := &o.made[c.key][c.part]
	*all = append(*all, m)
	if c.part == once && len(*all) > 1 {
		w.violate("a step that runs once had two effects", fmt.Sprintf("%v, after one under fence %d", c, (*all)[0].fence))
	}
	return m.text, nil
}

// emit emits a message that tells its run.
func (a *attempt) emit() {
	if !a.w.setup.program.has(emits) || a.t.handler == fails {
		return
	}
	body := fmt.Sprintf("%d#%d", a.run.Fence(), a.messages)
	if err := a.run.Emit(stet.Message{To: "topic", Key: keyNames[a.t.key], Body: []byte(body)}); err != nil {
		a.accuse("a run could not emit", err.Error())
	}
	a.messages++
}

// outcome is that of this run, with how many messages it has emitted.
func (a *attempt) outcome(state store.State) (stet.Outcome, string) {
	text := fmt.Sprintf("%s@%d+%d", keyNames[a.t.key], a.run.Fence(), a.messages)
	if state == store.Failed {
		return stet.Outcome{Failed: true, Body: []byte(text)}, text
	}
	return stet.Outcome{Body: strconv.AppendQuote(nil, text)}, text
}

// settle ends the run with an outcome.
func (a *attempt) settle(ctx context.Context, state store.State, cancelled bool) (err error) {
	switch {
	case a.run.Declared() == stet.MayHaveExecuted:
		return a.end(ctx, errMarked)
	case cancelled:
	default:
		a.emit()
	}
	if !a.w.setup.program.has(finishing) || cancelled {
		if !cancelled {
			a.emit()
		}
		var out stet.Outcome
		out, a.t.text = a.outcome(state)
		a.t.outcome = true
		return errors.Join(a.run.Settle(ctx, out), failed(state, a.t.text))
	}
	before := a.messages
	err = workStore{a.process}.inTx().Finish(a.run.Context(), a.run, func(_ context.Context, tx *workTx) (out stet.Outcome, err error) {
		a.emit() // forgotten if this does not come about
		a.write(tx, finishing)
		out, a.t.text = a.outcome(state)
		return out, nil
	})
	if err != nil {
		a.messages = before
		return a.end(ctx, err)
	}
	a.t.outcome = true
	return failed(state, a.t.text)
}

// failed is a client's text of a failure.
func failed(state store.State, text string) error {
	if state != store.Failed {
		return nil
	}
	return &stet.Error{Kind: stet.KindFailed, Execution: stet.Executed, Cause: errors.New(text)}
}

// end ends the run without an outcome.
func (a *attempt) end(ctx context.Context, why error) error {
	if a.run.Declared() == stet.MayHaveExecuted || a.touched {
		return errors.Join(errMarked, a.run.MarkUnknown(ctx))
	}
	if a.t.patient {
		return errors.Join(errReturned, a.run.Release(ctx, stet.Again{}))
	}
	after := time.Duration(0)
	if a.t.leaves {
		after = later
	}
	return errors.Join(errReturned, why, a.run.Release(ctx, stet.Again{After: after}))
}
