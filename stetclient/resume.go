package stetclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/stet-go/stet/internal/misuse"
)

// resumePage is how many intents Resume reads, and sends concurrently.
const resumePage = 8

// ResumeOptions configure Resume. The zero value is usable.
type ResumeOptions struct {
	// Prepare, if set, is called with each request before it is sent, to add the
	// credentials, because the journal does not have them. It must not change anything
	// else.
	Prepare func(*http.Request) error
	// Progress, if set, is called for each intent that was tried, from several
	// goroutines, one at a time.
	Progress func(Progress)
}

// Progress is the result for one intent.
type Progress struct {
	Name    string // "" without WithIntent
	Settled bool
	Info    Info
	Status  int   // of the outcome
	Err     error // why it is not settled
}

// Resumed counts the intents that Resume has read.
type Resumed struct {
	Settled int // they have an outcome now
	Pending int // they have none
	Stale   int // of those, too old to be sent again: an operator must resolve them
}

// Resume settles the intents that the journal has without an outcome. It sends each
// request again once, with the same key, under the policy. It does not send intents older
// than Options.MaxAge, nor those of a call in progress. A refusal, such as a 401, settles
// nothing: Progress is called, and the intent stays. Redirects are not followed. Call
// Resume when the process starts, and again later while Resumed.Pending exceeds
// Resumed.Stale.
//
// The error is that of ctx, or of the journal; Resumed is valid also with an error.
func (t *Transport) Resume(ctx context.Context, o ResumeOptions) (Resumed, error) {
	if t.o.Journal == nil {
		return Resumed{}, misuse.Errorf("stetclient: Resume needs Options.Journal; journal.Open makes one")
	}
	r := resumption{t: t, o: o}
	for after := ""; ; {
		page, err := t.o.Journal.Pending(ctx, after, resumePage)
		if err != nil {
			return r.Resumed, err
		}
		var wg sync.WaitGroup
		for _, in := range page {
			after = in.Name
			wg.Go(func() { r.finish(ctx, in) })
		}
		wg.Wait()
		if err := context.Cause(ctx); err != nil || len(page) < resumePage {
			return r.Resumed, err
		}
	}
}

// resumption is a call of Resume.
type resumption struct {
	t *Transport
	o ResumeOptions

	mu sync.Mutex
	Resumed
}

// finish tries to get an outcome for one intent.
func (r *resumption) finish(ctx context.Context, in Intent) {
	p := Progress{Name: label(in.Name, in.Key)}
	if r.t.live.tryEnter(in.Name) != nil {
		p.Err = errBusy
		r.count(p)
		return
	}
	defer r.t.live.leave(in.Name)
	res, err := r.t.resume(ctx, in, r.o.Prepare)
	if res != nil {
		p.Info, _ = InfoOf(res)
		p.Status, p.Settled = res.StatusCode, !p.Info.Pending
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, DefaultMaxResponse)) // so that the connection can be used again
		_ = res.Body.Close()
	}
	if e, ok := errors.AsType[*Error](err); ok {
		p.Info = e.Info
		// It was settled or removed between the reading and the sending.
		p.Settled = e.Reason == ReasonJournal && errors.Is(err, ErrNoIntent)
	}
	if !p.Settled {
		p.Err = err
	}
	r.count(p)
}

var errBusy = errors.New("stetclient: the intent has a call in progress")

func (r *resumption) count(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Settled {
		r.Settled++
	} else {
		r.Pending++
	}
	if e, ok := errors.AsType[*Error](p.Err); ok && e.Reason == ReasonStale {
		r.Stale++
	}
	if r.o.Progress != nil {
		r.o.Progress(p)
	}
}

// resume sends an intent as the journal has it.
func (t *Transport) resume(ctx context.Context, in Intent, prepare func(*http.Request) error) (*http.Response, error) {
	unsent := func(err error) error {
		return &Error{Reason: ReasonRequest, Info: Info{Key: in.Key, Execution: in.Execution, Pending: true}, Cause: err}
	}
	c := &call{Context: ctx, t: t, key: in.Key, entry: entry{name: in.Name, resuming: true}, body: body{bytes: bytes.Clone(in.Body)}}
	req, err := http.NewRequestWithContext(c, in.Method, in.URL, nil)
	if err != nil {
		return nil, unsent(err)
	}
	req.Host, req.ContentLength = in.Host, int64(len(in.Body))
	if in.Header != nil {
		req.Header = in.Header.Clone()
	}
	if prepare != nil {
		if err := prepare(req); err != nil {
			return nil, unsent(err)
		}
	}
	req.Header[t.o.Service.Header] = []string{t.field(in.Key)}
	c.req = req
	return t.further(c, in)
}
