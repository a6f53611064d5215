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
)

var (
	errGone    = errors.New("the remote worker was not heard of for as long as the lease")
	errNobody  = fmt.Errorf("no remote worker asked for it: %w", stet.ErrRetryable)
	errUnheard = fmt.Errorf("the remote worker has gone before it was told: %w", stet.ErrRetryable)
)

// session is a run that a remote worker has asked for.
type session struct {
	name  string // the worker's own
	begun chan struct{}
	end   chan ending   // the worker's last word; the first is heard
	over  chan struct{} // closed when Do has returned
	heard chan struct{} // the worker has extended

	mu         sync.Mutex
	run        *stet.Run
	ctx        context.Context // the handler's
	lease      time.Duration
	cancelling bool
	ended      bool // a last word was accepted
	steps      map[string]*stepping
}

// ending is how a run ends.
type ending struct {
	result json.RawMessage
	err    error
	doubt  bool
}

func newSession(name string) *session {
	return &session{name: name, begun: make(chan struct{}), end: make(chan ending, 1), over: make(chan struct{}),
		heard: make(chan struct{}, 1), steps: make(map[string]*stepping)}
}

// run is the handler of all names: it waits for the remote worker's last word, or
// for its silence.
func (s *Server) run(ctx context.Context, _ []byte) (json.RawMessage, error) {
	run := stet.FromContext(ctx)
	s.mu.Lock()
	ses := s.pending[run.ID()]
	delete(s.pending, run.ID())
	s.mu.Unlock()
	if ses == nil {
		return nil, errNobody
	}
	ses.mu.Lock()
	ses.run, ses.ctx = run, ctx
	ses.lease = max(run.Record().LeaseLeft, stet.MinLease)
	ses.mu.Unlock()
	close(ses.begun)
	silence := time.NewTimer(ses.lease)
	defer silence.Stop()
	over := ctx.Done()
	for {
		select {
		case e := <-ses.end:
			if e.doubt {
				run.OutcomeUnknown(0)
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
			ses.mu.Lock()
			late := !ses.ended
			ses.ended = true
			ses.mu.Unlock()
			if late {
				run.OutcomeUnknown(0)
				return nil, errGone
			}
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

// extend notes that the worker is alive, and reports whether it is to stop.
func (ses *session) extend() (cancelling bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if !ses.cancelling {
		select {
		case ses.heard <- struct{}{}:
		default:
		}
	}
	return ses.cancelling
}

// settled is the ending of a run with a result, or with an error that is the
// outcome.
func settled(result json.RawMessage, text string) ending {
	if text != "" {
		return ending{err: stetwork.Permanent(errors.New(text))}
	}
	return ending{result: result}
}

func returned(text string) ending {
	if text == "" {
		text = "the remote worker gave it back"
	}
	return ending{err: fmt.Errorf("%s: %w", text, stet.ErrRetryable)}
}

func parked(text string) ending {
	if text == "" {
		text = "the remote worker does not know"
	}
	return ending{err: errors.New(text), doubt: true}
}

// stepping is a step of a run.
type stepping struct {
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

// begin begins a step, or finds it.
func (ses *session) begin(name string, kind stet.StepKind) *stepping {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if st, ok := ses.steps[name]; ok {
		return st
	}
	st := &stepping{begun: make(chan struct{}), word: make(chan word, 1), over: make(chan struct{})}
	ses.steps[name] = st
	go func() { // ends with the run
		defer close(st.over)
		st.result, st.err = stet.Step(ses.ctx, name, kind, func(context.Context) (json.RawMessage, error) {
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
	errUndone = fmt.Errorf("the remote worker says that the step did not happen: %w", stet.ErrRetryable)
	errUnsaid = errors.New("the run ended without a word of the step")
)
