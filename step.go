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

// maxProgress limits the message of a progress report, in bytes. The rest of the record is for
// the results of steps.
const maxProgress = 1 << 10

// progressEvery is the least time between two writes of progress.
const progressEvery = time.Second

// notes are the stored progress and steps of an operation.
type notes struct {
	Progress store.Progress  `json:"progress,omitzero"`
	Steps    map[string]step `json:"steps,omitempty"`
}

// step is the stored state of a step.
type step struct {
	Done   bool            `json:"done,omitempty"` // false: a StepOnce has begun
	Result json.RawMessage `json:"result,omitempty"`
	Type   string          `json:"type,omitempty"` // of Body, which replaces Result if the value is not JSON
	Body   []byte          `json:"body,omitempty"`
}

// stepState is a run's copy of its stored steps.
type stepState struct {
	mu      sync.Mutex // held during store calls, so that writes are in order
	loaded  bool
	version uint64 // of the last write that was sent to the store
	marked  bool   // the stored record may say that the run is Repeatable
	notes   notes
	saved   time.Time           // when progress was last written
	taken   map[string]struct{} // names that this attempt has used
	unknown error               // the stored steps are unknown, so nothing may be written over them
}

// Step runs fn as one step of the operation of ctx. It stores fn's result under the run's
// fence, encoded by Policy.Values. A later attempt gets the stored result and does not call fn
// again. If the result was not stored, the next attempt calls fn again. Running fn twice must
// therefore have one effect; otherwise use StepOnce.
//
// name identifies the step within the operation: 1 to MaxName bytes (255) of UTF-8. It must be
// the same in every attempt. Reusing a step name within an attempt, as in a loop, is an error.
//
// Step returns an error of fn unchanged and stores no result. The next attempt runs the step
// again. If a failure must be stored, such as a declined card, return it as a value.
//
// Other errors are *Errors of kind KindInvalid, KindFenced (the run has lost its claim),
// KindDamaged or KindStore. KindInvalid means that ctx has no run, the store does not support
// steps, or the name was used twice. The handler should return these errors.
func Step[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	return takeStep(ctx, name, false, fn)
}

// StepOnce is Step for an effect that must not be repeated. A StepOnce is unresolved if it has
// begun and its end is not stored. Then the error is of KindUnknown, in this attempt and in
// later ones. The operation becomes Unknown when its handler returns. The step runs again only
// if a verifier or an operator states that it had no effect (see ItDidNotHappen).
//
// If fn returns an error, the step stays unresolved, unless the error is Retryable, which
// states that nothing happened. An *Error of another operation is not Retryable.
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

// done returns the stored form of a completed step with the value v.
func (p *Policy) done(v any) (*step, error) {
	mediaType, body, err := coding.Encode(p.Values, v)
	if mediaType == "application/json" && json.Valid(body) {
		return &step{Done: true, Result: body}, err
	}
	return &step{Done: true, Type: mediaType, Body: body}, err
}

// recall decodes the stored value of a step into v.
func (p *Policy) recall(s *step, v any) error {
	if s.Type != "" {
		return coding.Decode(p.Values, s.Type, s.Body, v)
	}
	return coding.Decode(p.Values, "application/json", s.Result, v)
}

// enterStep returns past if an earlier attempt has completed the step, and decodes its value.
// It fails if a StepOnce is unresolved. Otherwise, it stores that a StepOnce begins. If it
// returns neither past nor an error, the caller must call leaveStep.
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
			return true, damaged(fmt.Errorf("the result of the step %q does not fit a %T: %T", name, v, err)) // err would quote the value
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

// beginOnce stores that a StepOnce begins. Until its end is stored, the operation can only
// become unknown.
func (r *Run) beginOnce(ctx context.Context, ws store.WorkStore, name string) error {
	r.mu.Lock()
	if r.ended || r.committing {
		r.mu.Unlock()
		return invalid("the step %q was begun when the run had ended, or its outcome was given to SettleTx", name)
	}
	r.leaveOpen(name)
	r.mu.Unlock()
	err := r.note(ctx, ws, name, &step{})
	if err != nil { // the step does not begin
		r.mu.Lock()
		delete(r.openSteps, name)
		r.mu.Unlock()
	}
	return err
}

// leaveOpen marks a step as unresolved, so that only MarkUnknown may end the run. The caller holds r.mu.
func (r *Run) leaveOpen(name string) {
	if r.openSteps == nil {
		r.openSteps = make(map[string]struct{})
	}
	r.openSteps[name] = struct{}{}
}

// StepTx is Step in a transaction. The writes of fn through tx and the result are committed
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
	defer func() { // also if fn panics
		if locked {
			b.mu.Unlock()
		}
	}()
	var theirs error
	var after notes
	committing := false // if true, an error leaves the stored steps unknown
	err = ws.InTx(ctx, func(ctx context.Context, tx Tx) error {
		if v, theirs = fn(ctx, tx); theirs != nil {
			return theirs
		}
		s, err := r.p.done(v)
		if err != nil {
			return err
		}
		b.mu.Lock() // until the transaction has ended, so that no other write is concurrent
		locked = true
		after = b.notes.with(name, s)
		err = saveTx(ctx, r, ws, tx, after)
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

// saveTx writes notes in a transaction. The caller holds steps.mu.
func saveTx[Tx any](ctx context.Context, r *Run, ws store.WorkTxStore[Tx], tx Tx, n notes) error {
	packed, err := r.packNotes(n)
	if err != nil {
		return err
	}
	fault.At(fault.StepBefore)
	return ws.SaveTx(ctx, tx, r.rec.Claim(), packed, r.repeats(n))
}

// Progress stores the run's progress for readers of the operation's Status. fraction is 0 to 1.
// It is written at most once a second, and with the result of a step. The last progress within
// a second is written with the next write. A message is cut to 1 KiB. Errors are those of Step.
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

// recall reserves a step's name for this attempt, and returns its stored state from earlier
// attempts, or nil.
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

// leaveStep ends a step of this attempt. Unless it is past, the attempt may use the name again.
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

// load reads the stored steps of earlier attempts. The caller holds r.steps.mu.
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
			r.leaveOpen(name)
		}
	}
	return nil
}

// notes decodes the progress and steps of a record.
func (e *Engine) notes(rec store.Record) (n notes, err error) {
	if len(rec.Notes.Data) == 0 { // the version may still count uncounted attempts
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

// openStep returns the name of an unresolved StepOnce, or "" if there is none.
func (n notes) openStep() (first string) {
	for name, s := range n.Steps { // the first by name, so that each call returns the same one
		if !s.Done && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// with returns a copy of the notes with one step changed, or removed if s is nil.
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

// note stores a step, or removes it if s is nil.
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

// save writes the notes. The caller holds r.steps.mu.
func (r *Run) save(ctx context.Context, ws store.WorkStore, n notes) error {
	return r.saveAs(ctx, ws, n, r.repeats(n))
}

// repeats reports whether a worker may repeat the run once n is stored.
func (r *Run) repeats(n notes) bool { return r.repeatable && n.openStep() == "" }

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

// unrepeatable clears the stored Repeatable mark, so that the record becomes unknown when its
// lease expires.
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

// packNotes encodes the run's next notes for the store. The caller holds r.steps.mu.
func (r *Run) packNotes(n notes) (store.Notes, error) {
	next := (r.steps.version/reports + 1) * reports
	packed, err := r.e.packNotes(r.rec.ID, next, n)
	if err == nil {
		r.steps.version = next
	}
	return packed, err
}

// packNotes encodes notes for the store.
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

// saveError returns the handler's error for a failed read or write of the steps.
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
