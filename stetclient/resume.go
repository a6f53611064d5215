package stetclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Limits of Resume.
const (
	defaultConcurrency = 4
	maxConcurrency     = 256
	resumePage         = 32
	maxRedirects       = 10 // of one intent; http.Client's own limit
)

// ResumeOptions configure Resume. The zero value is usable.
type ResumeOptions struct {
	// Concurrency is how many intents are sent at a time. Default 4; at most
	// 256.
	Concurrency int
	// Once makes one attempt series for each pending intent. By default Resume repeats
	// until no intent is left that can be settled.
	Once bool
	// Prepare, if set, is called with each request before it is sent, to add the
	// credentials, which the journal does not have. It must not change anything else.
	// Headers that it sets are not sent to another host after a redirect.
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

// Resumed counts what Resume has done.
type Resumed struct {
	Settled int // intents that got an outcome
	Pending int // still without one, when last tried
	Stale   int // of those, too old to be sent again: an operator has to find out
}

// Resume settles the intents that the journal has without an outcome: it sends their
// requests again, with the same keys, each under the policy, and repeats until all have
// an outcome or ctx ends. It does not send intents older than Options.MaxAge, nor those
// of a call in progress. A refusal, such as a 401, settles nothing: Progress is called,
// and the intent stays. Redirects are followed. Call it when the process starts.
//
// The error is that of ctx, or of the journal; Resumed is valid also with an error.
func (t *Transport) Resume(ctx context.Context, o ResumeOptions) (Resumed, error) {
	var total Resumed
	if t.o.Journal == nil {
		return total, misuse.Errorf("stetclient: Resume needs Options.Journal; journal.Open makes one")
	}
	if o.Concurrency < 0 || o.Concurrency > maxConcurrency {
		return total, misuse.Errorf("stetclient: ResumeOptions.Concurrency is %d; it must be 1 to %d, or 0 for %d", o.Concurrency, maxConcurrency, defaultConcurrency)
	}
	if o.Concurrency == 0 {
		o.Concurrency = defaultConcurrency
	}
	last := ""
	for rounds := 0; ; rounds++ {
		r := round{t: t, o: &o, last: last}
		err := r.run(ctx)
		last = r.last
		total.Settled += r.Settled
		total.Pending, total.Stale = r.Pending, r.Stale
		if err != nil || o.Once || r.Pending == r.Stale {
			return total, err
		}
		// Full jitter again: many clients may have started together.
		pause := time.NewTimer(rand.N(min(t.o.Policy.Cap, t.o.Policy.Base<<min(rounds, 20))) + 1)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return total, context.Cause(ctx)
		}
	}
}

// round is one pass over the pending intents.
type round struct {
	t *Transport
	o *ResumeOptions

	mu   sync.Mutex
	last string          // the intent that was sent last, before any was held back
	dry  map[string]bool // hosts without a token: no more is sent to them in this round
	Resumed
}

// run begins after the intent at which the round before it ended: if there are
// tokens for a few only, they are not always the same ones.
func (r *round) run(ctx context.Context) error {
	start := r.last
	if err := r.pages(ctx, start, ""); err != nil || start == "" {
		return err
	}
	return r.pages(ctx, "", start)
}

// pages deals with the intents after one, up to another if that is not "".
func (r *round) pages(ctx context.Context, after, to string) error {
	for {
		page, err := r.t.o.Journal.Pending(ctx, after, resumePage)
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		room := make(chan struct{}, r.o.Concurrency)
		for _, in := range page {
			if after = in.Name; to != "" && after > to {
				break
			}
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				r.finish(ctx, in)
			})
		}
		wg.Wait()
		if err := context.Cause(ctx); err != nil || len(page) < resumePage || to != "" && after > to {
			return err
		}
	}
}

// finish tries to get an outcome for one intent.
func (r *round) finish(ctx context.Context, in Intent) {
	p := Progress{Name: label(in.Name, in.Key)}
	if r.t.live.tryEnter(in.Name) != nil {
		p.Err = errBusy
		r.note(in.Name, p)
		return
	}
	defer r.t.live.leave(in.Name)
	host := ""
	if u, err := url.Parse(in.URL); err == nil {
		host = u.Host
	}
	if r.isDry(host) {
		p.Err = heldBack(in)
		r.note(in.Name, p)
		return
	}
	res, err := r.t.resume(ctx, in, r.o.Prepare)
	if res != nil {
		p.Info, _ = InfoOf(res)
		p.Status, p.Settled = res.StatusCode, !p.Info.Pending
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, DefaultMaxResponse)) // so that the connection can be used again
		_ = res.Body.Close()
	}
	if e, ok := errors.AsType[*Error](err); ok {
		p.Info = e.Info
		if e.Reason == ReasonBudget && e.Attempts == 0 {
			r.setDry(host)
		}
		// It was settled or given up between the reading and the sending.
		p.Settled = e.Reason == ReasonJournal && errors.Is(err, ErrNoIntent)
	}
	if !p.Settled {
		p.Err = err
	}
	r.note(in.Name, p)
}

var errBusy = errors.New("stetclient: the intent has a call at work")

func (r *round) note(name string, p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Info.Attempts > 0 && r.dry == nil {
		r.last = name
	}
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

// heldBack is the error of an intent for which there is no token.
func heldBack(in Intent) *Error {
	return &Error{Reason: ReasonBudget, Info: Info{Key: in.Key, Execution: in.Execution, Pending: true}}
}

func (r *round) isDry(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dry[host]
}

func (r *round) setDry(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dry == nil {
		r.dry = make(map[string]bool)
	}
	r.dry[host] = true
}

// resume sends an intent as the journal has it, and follows redirects as an
// http.Client does, without credentials where the host is another.
func (t *Transport) resume(ctx context.Context, in Intent, prepare func(*http.Request) error) (*http.Response, error) {
	unsent := func(reason Reason, x stet.Execution, err error) error {
		return &Error{Reason: reason, Info: Info{Key: in.Key, Execution: x, Pending: true}, Cause: err}
	}
	req, err := http.NewRequestWithContext(ctx, in.Method, in.URL, bytes.NewReader(in.Body))
	if err != nil {
		return nil, unsent(ReasonRequest, in.Execution, err)
	}
	req.Host = in.Host
	if in.Header != nil {
		req.Header = in.Header.Clone()
	}
	secret := t.o.SecretHeaders
	if prepare != nil {
		kept := req.Header.Clone()
		if err := prepare(req); err != nil {
			return nil, unsent(ReasonRequest, in.Execution, err)
		}
		for name, values := range req.Header { // credentials, whatever their name
			if !slices.Equal(values, kept[name]) {
				secret = append(slices.Clip(secret), name)
			}
		}
	}
	client := http.Client{
		Transport: sender(func(req *http.Request) (*http.Response, error) { return t.send(req, in) }),
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			switch {
			case req.Method != in.Method:
				return http.ErrUseLastResponse // which was the outcome
			case len(via) > maxRedirects:
				return errRedirects
			}
			// net/http does so with Authorization and Cookie.
			if from := via[0].URL; req.URL.Host != from.Host || req.URL.Scheme != from.Scheme && req.URL.Scheme != "https" {
				for _, name := range secret {
					delete(req.Header, name) // as it was set
					req.Header.Del(name)
				}
			}
			return nil
		},
	}
	res, err := client.Do(req)
	if err == nil {
		return res, nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok { // it was redirected to where it cannot go
		return nil, unsent(ReasonFinal, stet.MayHaveExecuted, err)
	}
	return nil, e
}

var errRedirects = errors.New("stetclient: too many redirects")

type sender func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (s sender) RoundTrip(req *http.Request) (*http.Response, error) { return s(req) }

// send sends an intent to where req goes.
func (t *Transport) send(req *http.Request, in Intent) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close() // a RoundTripper must, and the intent has it too
	}
	c := &call{Context: req.Context(), t: t, key: in.Key, intent: in.Name, from: redirected(req), resuming: true, resending: true,
		body: body{bytes: bytes.Clone(in.Body), held: true}}
	c.req = *req.WithContext(c)
	c.req.Header, c.req.Response = req.Header.Clone(), nil
	c.req.Body, c.req.ContentLength = nil, int64(len(in.Body))
	if s := &t.o.Service; s.PutKey == nil {
		c.field[0] = t.field(in.Key)
		c.req.Header[s.Header] = c.field[:]
	}
	if !t.budgets.spend(c.req.URL.Host, time.Now()) {
		return nil, heldBack(in)
	}
	res, err := t.further(c, in)
	if err == nil {
		t.budgets.earn(c.req.URL.Host, 1)
	}
	return res, err
}
