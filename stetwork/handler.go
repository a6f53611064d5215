package stetwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/store"
)

// handler is the handler of a name.
type handler struct {
	// again says that a run may be repeated however it ended.
	again bool
	tx    bool // it is of HandleTx
	// run calls the handler. It has ended the run itself if it is of HandleTx and returns no error.
	run func(ctx context.Context, a *attempt) (stet.Outcome, error)
}

// Handle registers a handler for operations of that name: their payload is decoded
// from JSON into P (if P is []byte, it is the payload), and the value that h
// returns is the outcome, encoded by Policy.Values. h runs under the run's context; stet.FromContext has
// its key, its fence, its attempt, and Progress and Emit.
//
// h is run again only if it had no effect: it returns an error that is
// stet.Retryable (an *stet.Error of another operation is not), or it calls
// Declare(stet.NotExecuted, 0). Any other error is the outcome, except that of its context.
// A panic is a failed outcome. See the package's table.
//
// The error is of kind stet.KindInvalid.
func Handle[P, T any](w *Worker, name string, h func(ctx context.Context, payload P) (T, error)) error {
	return handle(w, name, false, h)
}

// HandleIdempotent is Handle for a handler that may run again after any earlier run: doing it
// twice has one effect, or all of its effects are in steps (stet.Step, stet.StepTx). An
// expired run is repeated, and so is a run that returned an error.
func HandleIdempotent[P, T any](w *Worker, name string, h func(ctx context.Context, payload P) (T, error)) error {
	return handle(w, name, true, h)
}

func handle[P, T any](w *Worker, name string, again bool, h func(context.Context, P) (T, error)) error {
	if h == nil {
		return w.register(name, handler{})
	}
	return w.register(name, handler{again: again, run: func(ctx context.Context, a *attempt) (stet.Outcome, error) {
		payload, err := decode[P](a.run)
		if err != nil {
			return stet.Outcome{}, err
		}
		value, err := h(ctx, payload)
		if err != nil {
			return stet.Outcome{}, err
		}
		out, encoding := a.outcomeOf(value)
		a.logUnstored(ctx, encoding)
		return out, nil
	}})
}

// HandleTx is Handle for a handler whose effects are writes to the database of te. Its
// writes through tx and the outcome are one commit, under the run's fence: a run that is
// stale writes nothing. An error or a panic rolls back, and the operation is run again;
// Permanent makes the error its outcome.
//
// h must not end the transaction, must have no effects outside of it, and takes no
// steps: they would wait for the transaction that they are called in, and so does
// Progress on stores that have one writer.
func HandleTx[Tx, P, T any](w *Worker, te *stet.TxEngine[Tx], name string, h func(ctx context.Context, tx Tx, payload P) (T, error)) error {
	switch {
	case te == nil || te.Engine() != w.engine:
		return misuse.Errorf("stetwork: HandleTx needs the result of stet.WithTx with the worker's engine")
	case h == nil:
		return w.register(name, handler{})
	}
	return w.register(name, handler{again: true, tx: true, run: func(ctx context.Context, a *attempt) (stet.Outcome, error) {
		payload, err := decode[P](a.run)
		if err != nil {
			return stet.Outcome{}, err
		}
		return stet.Outcome{}, te.Finish(ctx, a.run, func(ctx context.Context, tx Tx) (stet.Outcome, error) {
			value, err := h(ctx, tx, payload)
			if err == nil && a.run.Declared() != stet.Executed {
				err = errDeclared // to roll back
			}
			if err != nil {
				return stet.Outcome{}, err
			}
			out, _ := a.outcomeOf(value) // a value that cannot be encoded is Gone; the writes are committed
			return out, nil
		})
	}})
}

// HandleOutcome registers a handler that passes operations of that name on. Its outcomes are
// stored unchanged, also beside an error if the operation does not run again. Its run has the work and the claim. It is Handle or, if repeatable,
// HandleIdempotent in everything else; under stet.Policy.Outside, whose runs are undone
// unless the service has settled them, it must be repeatable.
//
// The error is of kind stet.KindInvalid.
func HandleOutcome(w *Worker, name string, repeatable bool, h func(ctx context.Context, run *stet.Lease) (stet.Outcome, error)) error {
	if h == nil {
		return w.register(name, handler{})
	}
	return w.register(name, handler{again: repeatable, run: func(ctx context.Context, a *attempt) (stet.Outcome, error) { return h(ctx, a.run) }})
}

// Again marks an error of a handler as stet.Retryable, and says how the operation is run
// again. how receives the wait of Options.Backoff; Failed of its result is ignored. An attempt that is Uncounted is not one of Options.MaxAttempts.
// Again(nil, how) is nil.
func Again(err error, how func(backoff time.Duration) stet.Again) error {
	return again.Mark(err, how)
}

// outcomeOf is the outcome of a handler that has returned v. After an error v is not stored.
func (a *attempt) outcomeOf(v any) (stet.Outcome, error) {
	p, _ := a.w.engine.Policy(a.run.Op().Class)
	mediaType, body, err := coding.Encode(p.Values, v)
	if err != nil {
		return stet.Outcome{Gone: true}, err
	}
	return stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: mediaType, Body: body}, nil
}

var errDeclared = errors.New("the handler declared that nothing happened")

func (w *Worker) register(name string, h handler) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case name == "" || len(name) > store.MaxName:
		return misuse.Errorf("stetwork: a handler's name has %d bytes; it must have 1 to %d", len(name), store.MaxName)
	case h.run == nil:
		return misuse.Errorf("stetwork: the handler of %q is nil", name)
	}
	if _, taken := w.handlers[name]; taken {
		return misuse.Errorf("stetwork: %q has a handler already", name)
	}
	w.handlers[name] = h
	return nil
}

// names returns the names that handlers are registered for, in order.
func (w *Worker) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.handlers))
}

func (w *Worker) handler(name string) (handler, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.handlers[name]
	return h, ok
}

// decode returns the payload. A payload that cannot be decoded had no effect: a newer process
// may be able to read it.
func decode[P any](r *stet.Lease) (p P, err error) {
	if raw, ok := any(&p).(*[]byte); ok {
		*raw = r.Work.Payload
		return p, nil
	}
	if err := coding.DecodeJSON(r.Work.Payload, &p); err != nil {
		return p, stet.Retryable(fmt.Errorf("the payload does not match the handler's type: %s", misfit(err)))
	}
	return p, nil
}

// misfit returns why JSON cannot be decoded, without its content, because the text is logged.
func misfit(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		what, _, _ := strings.Cut(e.Value, " ")
		return fmt.Sprintf("a %s for %q, a %v", what, e.Field, e.Type)
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("no JSON at byte %d", e.Offset)
	}
	return fmt.Sprintf("a %T", err)
}
