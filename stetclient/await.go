package stetclient

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Defaults and limits of AwaitOptions.
const (
	// DefaultEvery is AwaitOptions.Every when that is 0.
	DefaultEvery = time.Second

	// unreachable is how long the status resource may fail, or not respond.
	unreachable = 2 * time.Minute

	maxEvery    = 30 * time.Second // the longest pause without Retry-After
	longestWait = 20               // seconds, of Prefer: wait

	longest = 30 * 24 * time.Hour // AwaitOptions.Every
)

// AwaitOptions configure Await. The zero value is usable.
type AwaitOptions struct {
	// Prepare, if set, is called with each request before it is sent, to add credentials.
	// Without Prepare, requests have the header of the first one. A request to another
	// origin than the first one has no such header, and Prepare is not called for it.
	Prepare func(*http.Request) error
	// Every is the shortest time between two requests. It has precedence over Retry-After.
	// Without Retry-After the pause doubles, up to 30 s. Default DefaultEvery; at most 30
	// days.
	Every time.Duration
	// MaxResult limits the size of a response, in bytes. Default DefaultMaxResponse.
	MaxResult int
	// Progress, if set, is called with each status document of an operation that is still
	// in progress.
	Progress func(status []byte)
}

// Awaited is the outcome of an operation.
type Awaited struct {
	// Status is the status of the outcome.
	Status int
	// Type is the media type of Body; "" if the service did not name it.
	Type string
	Body []byte
	// Problem is the problem document of a failure, or nil.
	Problem *Problem
	// Execution says whether the operation was executed.
	Execution stet.Execution
}

// Await waits for the outcome of an operation that a service has accepted. res is the 202
// (RFC 9110, section 15.3.3). Its Location, or "status_url" of its JSON body, names the
// status resource. Await polls that as often as Retry-After says, with Prefer: wait=20. If
// res has another status, it is the outcome. Await reads and closes its body.
//
// The status resource is one of stet (see docs/problems.md), or it responds with 202 while
// the operation is in progress, and then with the outcome. Redirects are not followed.
//
// If the status resource fails, or does not respond, for 2 minutes, Await returns an error; the
// last request can take 20 s more. Await ends with ctx: give it a deadline. The error is then an *Error with "may have
// executed", and Await can be called again with the same response. If the service does not
// know the operation, or refuses access, the error has ReasonFinal and "may have executed".
// If the outcome was discarded, it has stet.Executed. client sends the requests; nil is
// http.DefaultClient.
func Await(ctx context.Context, client *http.Client, res *http.Response, o AwaitOptions) (*Awaited, error) {
	if res == nil || res.Request == nil || res.Request.URL == nil {
		return nil, misuse.Errorf("stetclient: Await needs a response with its Request")
	}
	if o.Every < 0 || o.Every > longest || o.MaxResult < 0 {
		return nil, misuse.Errorf("stetclient: AwaitOptions.Every (%v) and MaxResult (%d) must not be negative, nor Every longer than %v", o.Every, o.MaxResult, longest)
	}
	o.Every = cmp.Or(o.Every, DefaultEvery)
	o.MaxResult = cmp.Or(o.MaxResult, DefaultMaxResponse)
	if client == nil {
		client = http.DefaultClient
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	// The requests are no operations, also if ctx has a key or an intent.
	ctx = context.WithValue(context.WithValue(ctx, keyOf{}, nil), intentName{}, nil)
	a := &awaiting{ctx: ctx, client: &own, o: o, first: res.Request, service: Service{Header: DefaultHeader, ReplayedHeader: DefaultReplayedHeader}, failing: time.Now()}
	c := callOf(res)
	if c != nil {
		a.info, a.service = c.info(), c.t.o.Service
	}
	a.last = &http.Response{Status: res.Status, StatusCode: res.StatusCode, Header: res.Header, Request: res.Request}
	body, err := a.read(res)
	if err != nil {
		return nil, a.gaveUp(ReasonTruncated, err)
	}
	if res.StatusCode != http.StatusAccepted {
		got := &Awaited{Status: res.StatusCode, Type: mediaType(res.Header), Body: body}
		var v Resolution
		if v, _, got.Problem = a.service.classify(res, body); c == nil {
			a.info.Execution = v.Execution
		}
		got.Execution = a.info.Execution // of all attempts
		return got, nil
	}
	at, err := statusURL(res, body)
	if err != nil {
		return nil, a.gaveUp(ReasonFinal, err)
	}
	return a.wait(at, retryAfter(res.Header, time.Now()))
}

// statusURL finds the status resource that a 202 names.
func statusURL(res *http.Response, body []byte) (*url.URL, error) {
	at := res.Header.Get("Location")
	if at == "" {
		var d struct {
			StatusURL string `json:"status_url"`
		}
		if json.Unmarshal(body, &d) == nil {
			at = d.StatusURL
		}
	}
	if at == "" {
		return nil, errors.New("the 202 names no status resource: it has no Location")
	}
	base := res.Request.URL
	u, err := base.Parse(at)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the Location: %w", err)
	case u.Scheme != "https" && (u.Scheme != "http" || base.Scheme == "https"):
		return nil, fmt.Errorf("the Location has the scheme %q", u.Scheme)
	}
	return u, nil
}

// awaiting is a call of Await.
type awaiting struct {
	ctx    context.Context
	client *http.Client
	o      AwaitOptions
	first  *http.Request // of the operation

	service Service
	info    Info
	last    *http.Response // without its body
	failing time.Time      // since when no status was read
	fault   error          // the last error
	pauses  int            // without Retry-After
}

// wait polls the status resource until there is an outcome.
func (a *awaiting) wait(at *url.URL, after time.Duration) (*Awaited, error) {
	for {
		if err := a.pause(after); err != nil {
			return nil, a.gaveUp(ReasonContext, err)
		}
		var got *Awaited
		var err error
		if got, after, err = a.ask(at); got != nil || err != nil {
			return got, err
		}
		if context.Cause(a.ctx) == nil && time.Since(a.failing) > unreachable {
			return nil, a.gaveUp(ReasonTime, a.fault)
		}
		if a.fault != nil {
			after = min(after, unreachable)
		}
	}
}

// ask sends one request. Without an outcome it returns the wait that the service asks for.
func (a *awaiting) ask(at *url.URL) (got *Awaited, after time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(a.ctx, unreachable+longestWait*time.Second, errSilent)
	defer cancel()
	req, err := a.request(ctx, at)
	if err != nil {
		return nil, 0, a.gaveUp(ReasonRequest, err)
	}
	res, err := a.client.Do(req) //nolint:bodyclose // read closes it
	if err != nil {
		a.fault = err
		return nil, 0, nil // the status can be read again
	}
	a.last = &http.Response{Status: res.Status, StatusCode: res.StatusCode, Header: res.Header, Request: res.Request}
	after = retryAfter(res.Header, time.Now())
	body, err := a.read(res)
	if err != nil {
		a.fault = err
		return nil, after, nil
	}
	switch code := res.StatusCode; {
	case code == http.StatusAccepted, code == http.StatusOK && unsettled(body):
		a.continues(body)
		return nil, after, nil
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500 && !a.replayed(res):
		a.fault = fmt.Errorf("the status resource responds with %s", res.Status)
		return nil, after, nil
	}
	got, err = a.response(res, body)
	return got, 0, err
}

var errSilent = errors.New("the status resource does not respond")

// replayed reports whether a response is marked as a replay of the outcome.
func (a *awaiting) replayed(res *http.Response) bool {
	return res.Header.Get(a.service.ReplayedHeader) == "true"
}

// notAsked are headers of the operation's request that are not sent to the status resource.
// net/http handles content codings itself.
var notAsked = []string{"Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Trailer", "Expect", "Accept-Encoding",
	"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}

// request returns the next request.
func (a *awaiting) request(ctx context.Context, at *url.URL) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	own := at.Host == a.first.URL.Host && at.Scheme == a.first.URL.Scheme
	if own {
		req.Header, req.Host = a.first.Header.Clone(), a.first.Host
		if req.Header == nil {
			req.Header = make(http.Header)
		}
		req.Header.Del(a.service.Header)
		for _, name := range notAsked {
			req.Header.Del(name)
		}
	}
	req.Header.Set("Accept", "application/json, */*;q=0.1")
	req.Header.Set("Prefer", fmt.Sprintf("wait=%d", longestWait))
	if own && a.o.Prepare != nil {
		err = a.o.Prepare(req)
	}
	return req, err
}

// pause waits as long as the service asked, but at least Every, with jitter.
func (a *awaiting) pause(after time.Duration) error {
	d := max(after, a.o.Every)
	if after == 0 {
		if a.o.Every < maxEvery {
			d = min(a.o.Every<<min(a.pauses, 10), maxEvery)
		}
		a.pauses++
	}
	return sleep(a.ctx, d+rand.N(d/10+1))
}

// continues records that the operation continues.
func (a *awaiting) continues(status []byte) {
	a.failing, a.fault = time.Now(), nil
	if a.o.Progress != nil && len(status) > 0 {
		a.o.Progress(status)
	}
}

// gaveUp is the error of an Await without an outcome.
func (a *awaiting) gaveUp(reason Reason, cause error) *Error {
	a.info.Execution = stet.MayHaveExecuted
	if cause == nil {
		cause = a.fault
	} else if a.fault != nil && !errors.Is(cause, a.fault) {
		cause = errors.Join(cause, a.fault)
	}
	return &Error{Reason: reason, Info: a.info, Response: a.last, Cause: cause}
}

// read reads the body of a response, and closes it.
func (a *awaiting) read(res *http.Response) ([]byte, error) {
	defer func() { _ = res.Body.Close() }() // read to its end, or broken
	body, whole, err := readUpTo(res.Body, a.o.MaxResult)
	if err == nil && !whole {
		err = fmt.Errorf("the response has more than %d bytes; see AwaitOptions.MaxResult", a.o.MaxResult)
	}
	return body, err
}
