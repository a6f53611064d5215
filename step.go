package stet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// maxProgress bounds the message of a progress, in bytes: notes of steps have the room.
const maxProgress = 1 << 10

// progressEvery is how often progress is written at most.
const progressEvery = time.Second

// notes are what the runs of an operation store in its record.
type notes struct {
	Progress store.Progress  `json:"progress,omitzero"`
	Steps    map[string]step `json:"steps,omitempty"`
}

// step is what is known of a step.
type step struct {
	Done   bool            `json:"done,omitempty"` // else it was begun, to run once
	Result json.RawMessage `json:"result,omitempty"`
	Type   string          `json:"type,omitempty"` // of Body, which is there instead of a result that is JSON
	Body   []byte          `json:"body,omitempty"`
}

// notebook is a run's copy of its notes.
type stepState struct {
	mu      sync.Mutex // held while the store is asked: notes are written one by one
	loaded  bool
	version uint64 // of the last that were sent to the store
	marked  bool   // the store may have it that the run is Repeatable
	notes   notes
	saved   time.Time           // when progress was written last
	taken   map[string]struct{} // names of steps that this attempt is in, or is past
	unknown error               // what is in the store is not known: nothing may be written over it
}

// Step runs fn as one phase of the operation that ctx belongs to, and keeps its
// result, as Policy.Values encodes it, with the operation's record under the run's fence: a later
// attempt gets that result and continues after it. If its end was not noted, the next
// attempt runs it again: doing it twice must have one effect, else it is for StepOnce.
// Names tell the steps of an
// operation apart: 1 to MaxName bytes of UTF-8, the same in every attempt, and
// another one for each step of an attempt, as in a loop: one that it is in, or is
// past, is refused.
//
// An error of fn is returned as it is, and no result kept: the next attempt runs
// the step again. A failure that is to be kept (a declined card) is a value.
//
// Other errors are *Errors of kind KindInvalid (no run in ctx, no such store, a name
// used twice), KindFenced (the run is stale), KindDamaged or KindStore: the handler should return
// them.
func Step[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	return takeStep(ctx, name, false, fn)
}

// StepOnce is Step for what must not be repeated. When a run has begun it and its end was
// not noted, the step is in doubt: the error is of kind KindUnknown, now and in a later
// attempt, and the operation is marked unknown as Unknown when its handler has returned. The step
// runs again only if a verifier or an operator says that it did not happen (see
// ItDidNotHappen).
//
// An error of fn leaves doubt, unless it is Retryable, which says that nothing has
// happened (an *Error of another operation is not).
func StepOnce[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	return takeStep(ctx, name, true, fn)
}

func takeStep[T any](ctx context.Context, name string, once bool, fn func(context.Context) (T, error)) (v T, err error) {
	r, ws, err := stepping(ctx, name)
	if err != nil {
		return v, err
	}
	past, err := r.enterStep(ctx, ws, name, once, &v)
	if past || err != nil {
		return v, err
	}
	defer func() { r.leaveStep(name, past) }()
	v, err = fn(ctx)
	switch {
	case err != nil && once && marked(err)&saysRetryable != 0:
		return v, errors.Join(err, r.note(ctx, ws, name, nil))
	case err != nil && once:
		r.Declare(MayHaveExecuted, 0)
		return v, &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: err}
	case err != nil:
		return v, err
	}
	s, err := r.p.done(v)
	if err == nil {
		err = r.note(ctx, ws, name, s)
	}
	if past = err == nil; !past && once {
		r.Declare(MayHaveExecuted, 0)
	}
	return v, err
}

// done is the note of a step that has returned v.
func (p *Policy) done(v any) (*step, error) {
	mediaType, body, err := coding.Encode(p.Values, v)
	if mediaType == "application/json" && json.Valid(body) {
		return &step{Done: true, Result: body}, err
	}
	return &step{Done: true, Type: mediaType, Body: body}, err
}

// recall stores in v what a step has returned.
func (p *Policy) recall(s *step, v any) error {
	if s.Type != "" {
		return coding.Decode(p.Values, s.Type, s.Body, v)
	}
	return coding.Decode(p.Values, "application/json", s.Result, v)
}

// enterStep finds the result of an earlier attempt, or what it left in doubt, and
// stores that a step which must not be repeated begins. Unless the step is past,
// or there is an error, leaveStep is to be called.
func (r *Run) enterStep(ctx context.Context, ws store.WorkStore, name string, once bool, v any) (past bool, err error) {
	s, err := r.recall(ctx, ws, name)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			r.leaveStep(name, false)
		}
	}()
	switch {
	case s != nil && s.Done:
		if err := r.p.recall(s, v); err != nil {
			return true, damaged(fmt.Errorf("the result of the step %q does not fit a %T: %T", name, v, err)) // err quotes it
		}
		return true, nil
	case s != nil && once:
		r.Declare(MayHaveExecuted, 0)
		return false, &Error{Kind: KindUnknown, Execution: MayHaveExecuted,
			Cause: fmt.Errorf("an earlier attempt began the step %q and did not say how it ended", name)}
	case once:
		return false, r.beginOnce(ctx, ws, name)
	}
	return false, nil
}

// beginOnce stores that a step which must not be repeated begins. From then on
// the run can only be marked unknown, until it is noted how the step ended.
func (r *Run) beginOnce(ctx context.Context, ws store.WorkStore, name string) error {
	r.mu.Lock()
	if r.ended || r.committing {
		r.mu.Unlock()
		return invalid("the step %q was begun when the run had ended, or its outcome was given to SettleTx", name)
	}
	r.doubt(name)
	r.mu.Unlock()
	err := r.note(ctx, ws, name, &step{})
	if err != nil { // it does not begin
		r.mu.Lock()
		delete(r.openSteps, name)
		r.mu.Unlock()
	}
	return err
}

// doubt notes that only MarkUnknown may end the run. The caller holds r.mu.
func (r *Run) doubt(name string) {
	if r.openSteps == nil {
		r.openSteps = make(map[string]struct{})
	}
	r.openSteps[name] = struct{}{}
}

// StepTx is Step in a transaction: what fn writes through tx and the result are committed
// together, so the step has its effect once.
func StepTx[Tx, T any](ctx context.Context, te *TxEngine[Tx], name string, fn func(context.Context, Tx) (T, error)) (v T, err error) {
	r, _, err := stepping(ctx, name)
	if err != nil {
		return v, err
	}
	ws, err := te.workStore()
	switch {
	case err != nil:
		return v, err
	case !same(r.e.store, te.s):
		return v, invalid("StepTx needs the store of the run that it is a step of")
	}
	past, err := r.enterStep(ctx, ws, name, false, &v)
	if past || err != nil {
		return v, err
	}
	defer func() { r.leaveStep(name, past) }()
	b := &r.steps
	locked := false
	defer func() { // also when fn panics
		if locked {
			b.mu.Unlock()
		}
	}()
	var theirs error
	var after notes
	committing := false // from then on an error says nothing of what is in the store
	err = ws.InTx(ctx, func(ctx context.Context, tx Tx) error {
		if v, theirs = fn(ctx, tx); theirs != nil {
			return theirs
		}
		s, err := r.p.done(v)
		if err != nil {
			return err
		}
		b.mu.Lock() // until the transaction has ended: nothing is written beside it
		locked = true
		after = b.notes.with(name, s)
		packed, err := r.packNotes(after)
		if err != nil {
			return err
		}
		fault.At(fault.StepBefore)
		err = ws.SaveTx(ctx, tx, r.rec.Claim(), packed, r.repeats(after))
		committing = err == nil
		return err
	})
	fault.At(fault.StepAfter)
	switch {
	case theirs != nil:
		return v, theirs
	case err != nil:
		err = r.saveError(ctx, err)
		if committing {
			b.unknown = err
		}
		return v, err
	}
	b.notes, b.marked, past = after, r.repeats(after), true
	return v, nil
}

// Progress tells those who ask for the operation's Status how far the run has
// come. It is written at most once a second, and with the result of a step; what
// comes in between is kept for then. A message is cut to 1 KiB. Errors are those of Step.
func (r *Run) Progress(ctx context.Context, fraction float64, message string) error {
	ws, err := r.e.workStore()
	if err != nil {
		return err
	}
	b := &r.steps
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := r.load(ctx, ws); err != nil {
		return err
	}
	now := time.Now()
	b.notes.Progress = newProgress(fraction, message)
	if now.Sub(b.saved) < progressEvery {
		return nil
	}
	b.saved = now
	return r.save(ctx, ws, b.notes)
}

// recall takes a step's name for this attempt, and finds what is known of the step
// from earlier ones; nil for nothing.
func (r *Run) recall(ctx context.Context, ws store.WorkStore, name string) (*step, error) {
	b := &r.steps
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := r.load(ctx, ws); err != nil {
		return nil, err
	}
	if _, ok := b.taken[name]; ok {
		return nil, invalid("this attempt has begun a step %q before: each step needs a name of its own, also in a loop, and in goroutines", name)
	}
	if b.taken == nil {
		b.taken = make(map[string]struct{})
	}
	b.taken[name] = struct{}{}
	if s, ok := b.notes.Steps[name]; ok {
		return &s, nil
	}
	return nil, nil
}

// leaveStep ends a step of this attempt. Unless it is past, the attempt may try it
// again.
func (r *Run) leaveStep(name string, past bool) {
	if past {
		return
	}
	r.steps.mu.Lock()
	defer r.steps.mu.Unlock()
	delete(r.steps.taken, name)
}

func stepping(ctx context.Context, name string) (*Run, store.WorkStore, error) {
	r := FromContext(ctx)
	switch {
	case r == nil || r.transactional:
		return nil, nil, invalid("a step needs the context of a run in lease mode: that of Begin, Do or Take")
	case name == "" || len(name) > store.MaxName:
		return nil, nil, invalid("the step's name has %d bytes; it must have 1 to %d", len(name), store.MaxName)
	case !utf8.ValidString(name):
		return nil, nil, invalid("the step's name is not UTF-8")
	}
	ws, err := r.e.workStore()
	return r, ws, err
}

// load reads the notes of earlier attempts. The caller holds the book's mu.
func (r *Run) load(ctx context.Context, ws store.WorkStore) error {
	if r.steps.loaded {
		return r.steps.unknown
	}
	rec := r.rec
	if !r.taken && r.rec.Attempt > 1 {
		err := r.e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
			rec, err = ws.Look(ctx, r.rec.ID)
			return err
		})
		if err != nil {
			return r.saveError(ctx, err)
		}
	}
	n, err := r.e.notes(rec)
	if err != nil {
		return err
	}
	r.steps.notes, r.steps.loaded, r.steps.version = n, true, rec.Notes.Version
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, s := range n.Steps {
		if !s.Done {
			r.doubt(name)
		}
	}
	return nil
}

// notes returns those of a record.
func (e *Engine) notes(rec store.Record) (n notes, err error) {
	if len(rec.Notes.Data) == 0 { // of which no more is known than how many attempts count
		return n, nil
	}
	plain, err := e.sealer.unwrap(rec.ID, sealedNotes, rec.Notes.Data)
	if err == nil {
		err = json.Unmarshal(plain, &n)
	}
	if err != nil {
		return n, damaged(err)
	}
	return n, nil
}

// doubt returns the name of a step that was begun, to run once, and whose end was
// not seen; "" if there is none.
func (n notes) doubt() (first string) {
	for name, s := range n.Steps { // the same one each time
		if !s.Done && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// with returns the notes with one of their steps changed, or struck if s is nil.
func (n notes) with(name string, s *step) notes {
	steps := maps.Clone(n.Steps)
	if steps == nil {
		steps = make(map[string]step)
	}
	if s != nil {
		steps[name] = *s
	} else {
		delete(steps, name)
	}
	n.Steps = steps
	return n
}

// note writes a step down, or strikes it if s is nil.
func (r *Run) note(ctx context.Context, ws store.WorkStore, name string, s *step) error {
	b := &r.steps
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unknown != nil {
		return b.unknown
	}
	after := b.notes.with(name, s)
	if err := r.save(ctx, ws, after); err != nil {
		return err
	}
	b.notes = after
	if s == nil || s.Done {
		r.mu.Lock()
		delete(r.openSteps, name)
		r.mu.Unlock()
	}
	return nil
}

// save writes notes. The caller holds the book's mu.
func (r *Run) save(ctx context.Context, ws store.WorkStore, n notes) error {
	return r.saveAs(ctx, ws, n, r.repeats(n))
}

// repeats reports whether the run may be repeated that has noted this down.
func (r *Run) repeats(n notes) bool { return r.repeatable && n.doubt() == "" }

func (r *Run) saveAs(ctx context.Context, ws store.WorkStore, n notes, repeatable bool) error {
	packed, err := r.packNotes(n)
	if err != nil {
		return err
	}
	fault.At(fault.StepBefore)
	err = r.e.retry(ctx, claimTries, func(ctx context.Context) error { return ws.Save(ctx, r.rec.Claim(), packed, repeatable) })
	fault.At(fault.StepAfter)
	if err != nil {
		return r.saveError(ctx, err)
	}
	r.steps.marked = repeatable
	return nil
}

// unrepeatable makes a run that was taken as repeatable one that is marked unknown when its
// lease runs out.
func (r *Run) unrepeatable(ctx context.Context) error {
	if !r.repeatable {
		return nil
	}
	ws, err := r.e.workStore()
	if err != nil {
		return err
	}
	b := &r.steps
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.marked || b.unknown != nil {
		return b.unknown
	}
	return r.saveAs(ctx, ws, b.notes, false)
}

// packNotes prepares the run's next notes for the store. The caller holds the
// book's mu.
func (r *Run) packNotes(n notes) (store.Notes, error) {
	next := (r.steps.version/reports + 1) * reports
	packed, err := r.e.packNotes(r.rec.ID, next, n)
	if err == nil {
		r.steps.version = next
	}
	return packed, err
}

// packNotes prepares notes for the store.
func (e *Engine) packNotes(id store.ID, version uint64, n notes) (store.Notes, error) {
	plain, err := json.Marshal(n)
	if err != nil {
		return store.Notes{}, invalid("notes: %w", err)
	}
	if len(plain) > store.MaxNotes {
		return store.Notes{}, invalid("the notes of this operation would have %d bytes; at most %d", len(plain), store.MaxNotes)
	}
	return store.Notes{Version: version, Data: e.sealer.wrap(id, sealedNotes, plain)}, nil
}

// saveError is the handler's error for notes that could not be read or written.
func (r *Run) saveError(ctx context.Context, err error) error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	ev := observe.Event{Kind: observe.StoreFailed, ID: r.rec.ID, Class: r.op.Class, State: store.Running, Fence: r.rec.Fence, Attempt: r.rec.Attempt, Err: err}
	kind := KindStore
	switch {
	case errors.Is(err, store.ErrFenced):
		ev.Kind, kind = observe.Fenced, KindFenced
	case errors.Is(err, store.ErrDamaged):
		kind = KindDamaged
	}
	r.e.observe(ctx, ev)
	return &Error{Kind: kind, Execution: MayHaveExecuted, Cause: err}
}
