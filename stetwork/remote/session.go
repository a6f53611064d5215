package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

var (
	errGone    = errors.New("the remote worker sent no heartbeat for as long as the lease")
	errNobody  = uncounted("no remote worker asked for it", func(backoff time.Duration) time.Duration { return backoff })
	errUnheard = atOnce("the remote worker has gone before it was told")
)

// atOnce is the error of a run that no worker was told of.
func atOnce(text string) error {
	return uncounted(text, func(time.Duration) time.Duration { return 0 })
}

// uncounted is the error of an attempt that does not count.
func uncounted(text string, after func(backoff time.Duration) time.Duration) error {
	return stetwork.Again(errors.New(text), func(backoff time.Duration) stet.Again {
		return stet.Again{After: after(backoff), Uncounted: true}
	})
}

// session is a run that a remote worker has asked for.
type session struct {
	name  string          // the worker's own
	asks  context.Context // of the take that it was made for
	begun chan struct{}
	end   chan ending   // the worker's last word; the first is heard
	over  chan struct{} // closed when Do has returned
	heard chan struct{} // the worker has extended

	mu         sync.Mutex
	id         store.ID // of the operation, once it was taken
	run        *stet.Run
	payload    []byte
	ctx        context.Context // the handler's
	lease      time.Duration
	cancelling bool
	told       bool // its worker was told of it
	ended      bool // a last word was accepted
	steps      map[string]*stepping
}

// ending is how a run ends.
type ending struct {
	result json.RawMessage
	err    error
	doubt  bool
}

func newSession(asks context.Context, name string) *session {
	return &session{name: name, asks: asks, begun: make(chan struct{}), end: make(chan ending, 1), over: make(chan struct{}),
		heard: make(chan struct{}, 1), steps: make(map[string]*stepping)}
}

// run is the handler of all names: it waits for the remote worker's last word, or
// for its silence.
func (s *Server) run(ctx context.Context, payload []byte) (json.RawMessage, error) {
	run := stet.FromContext(ctx)
	s.mu.Lock()
	ses := s.pending[run.ID()]
	delete(s.pending, run.ID())
	s.mu.Unlock()
	switch {
	case ses == nil:
		return nil, errNobody
	case ses.asks.Err() != nil:
		return nil, errUnheard
	}
	ses.mu.Lock()
	ses.id, ses.run, ses.payload, ses.ctx = run.ID(), run, payload, ctx
	p, _ := s.worker.Engine().Policy(run.Op().Class)
	ses.lease = p.Lease
	ses.mu.Unlock()
	close(ses.begun)
	silence := time.NewTimer(ses.lease)
	defer silence.Stop()
	over := ctx.Done()
	for {
		select {
		case e := <-ses.end:
			if e.doubt {
				run.Declare(stet.MayHaveExecuted, 0)
			}
			return e.result, e.err
		case <-ses.heard:
			silence.Reset(ses.lease)
		case <-over: // it has what is left of its lease to hear of it
			over = nil
			ses.mu.Lock()
			ses.cancelling = true
			ses.mu.Unlock()
		case <-silence.C:
			if ses.silent() {
				run.Declare(stet.MayHaveExecuted, 0)
				return nil, errGone
			}
			silence.Reset(ses.lease) // it has just sent a sign of life, or the end of its run
		}
	}
}

// say hands over the worker's last word, unless there was one.
func (ses *session) say(e ending) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if !ses.ended {
		ses.ended = true
		ses.end <- e
	}
}

// operation returns what the session has taken; the zero ID if it has not, yet.
func (ses *session) operation() store.ID {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.id
}

func (ses *session) hasTaken() bool { return ses.operation() != store.ID{} }

// forgo lets go of a run that has ended, whose payload and results may be large: what
// is repeated of it is only told what stands.
func (ses *session) forgo() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.ended = true
	ses.run, ses.payload, ses.ctx, ses.asks, ses.steps = nil, nil, nil, nil, nil
}

// unheard gives the run back, unless its worker was told of it by a repeated take,
// or it has ended.
func (ses *session) unheard() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.told || ses.ended {
		return false
	}
	ses.ended = true
	ses.end <- ending{err: errUnheard}
	return true
}

// extend notes that the worker is alive, and was told of its run, and returns that, nil
// if it has ended, and its payload; and whether it is to stop: then it is given no more
// time.
func (ses *session) extend() (run *stet.Run, payload []byte, cancelling bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.ended {
		return nil, nil, false
	}
	ses.told = true
	if !ses.cancelling {
		select {
		case ses.heard <- struct{}{}:
		default:
		}
	}
	return ses.run, ses.payload, ses.cancelling
}

// silent ends a run whose worker has sent no sign of life for the lease; false if it has.
func (ses *session) silent() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	select {
	case <-ses.heard:
		return false
	default:
	}
	late := !ses.ended
	ses.ended = true
	return late
}

// settled is the ending of a run with a result, or with an error that is the
// outcome.
func settled(result json.RawMessage, text string) ending {
	if text != "" {
		return ending{err: stet.Permanent(errors.New(text))}
	}
	return ending{result: result}
}

func returned(text string, interrupted bool) ending {
	if text == "" {
		text = "the remote worker gave it back"
	}
	if interrupted {
		return ending{err: atOnce(text)}
	}
	return ending{err: stet.Retryable(errors.New(text))}
}

func parked(text string) ending {
	if text == "" {
		text = "the remote worker does not know"
	}
	return ending{err: errors.New(text), doubt: true}
}

// stepping is a step of a run.
type stepping struct {
	call   string        // what tells its request from others, if it has that
	begun  chan struct{} // closed when the worker is to do it
	word   chan word     // what the worker says of it
	over   chan struct{} // closed when it is noted down, or found
	result json.RawMessage
	err    error
}

type word struct {
	result json.RawMessage
	undone bool
}

// begin begins a step, or finds it; nil if it would begin it, and the run has ended.
func (ses *session) begin(name, call string, once bool) *stepping {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if st, ok := ses.steps[name]; ok {
		return st
	}
	if ses.ended {
		return nil
	}
	st := &stepping{call: call, begun: make(chan struct{}), word: make(chan word, 1), over: make(chan struct{})}
	if len(ses.steps) >= maxSteps {
		st.err = errSteps
		close(st.over)
		return st
	}
	ses.steps[name] = st
	ctx := ses.ctx
	step := stet.Step[json.RawMessage]
	if once {
		step = stet.StepOnce[json.RawMessage]
	}
	go func() { // ends with the run
		defer close(st.over)
		st.result, st.err = step(ctx, name, func(context.Context) (json.RawMessage, error) {
			close(st.begun)
			select {
			case w := <-st.word:
				if w.undone {
					return nil, errUndone
				}
				return w.result, nil
			case <-ses.over:
				return nil, errUnsaid
			}
		})
	}()
	return st
}

// another reports whether a request to begin the step is another use of its name, and
// no repetition of the request that it was begun by. A worker that has told of its end
// has no need of one.
func (st *stepping) another(call string) bool {
	return call != st.call || call == "" && closed(st.begun) && closed(st.over) && st.err == nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// say hands over what the worker says of a step; the first word is heard.
func (st *stepping) say(w word) {
	select {
	case st.word <- w:
	default:
	}
}

// forget lets a step be begun again, after it was struck.
func (ses *session) forget(name string) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	delete(ses.steps, name)
}

// open reports whether a step was begun whose end the worker has not told.
func (ses *session) open() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for _, st := range ses.steps {
		select {
		case <-st.over:
		default:
			return true
		}
	}
	return false
}

var (
	errUndone = stet.Retryable(errors.New("the remote worker says that the step did not happen"))
	errUnsaid = errors.New("the run ended without a result of the step")
	errSteps  = fmt.Errorf("a run has %d steps at most: %w", maxSteps, store.ErrInvalid)
)
