// Package verify looks at an HTTP service from outside, stet or not, and says
// point by point how it treats an idempotency key: by
// draft-ietf-httpapi-idempotency-key-header-07 (called D07 here) and by what a
// client must be able to rely on.
//
// From outside one sees answers, not executions. With a Counter, which is a
// service of this package's own that the one under test forwards to, executions
// are counted, too.
package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stet-go/stet"
)

// Options say what to look at.
type Options struct {
	URL    string // of an operation that takes a key
	Method string // default POST
	// Body is that of a request that succeeds. In each operation Unique stands for
	// something else: a service may refuse a payload that it has seen before. Default a
	// small JSON object with it.
	Body   string
	Other  string      // also of another request; default another small JSON object
	Header http.Header // of all requests: credentials, content type
	Key    string      // name of the key's header; default Idempotency-Key
	// Counter, if set, counts what arrives behind the service.
	Counter *Counter
	// Client sends the requests. Default: a client that does not retry or follow redirections.
	Client *http.Client
	// Progress is called before each point.
	Progress func(name string)
}

// Unique stands in a body for a value that is another one in each operation.
const Unique = "{{unique}}"

// Result of a point.
type Result string

// The results.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	Warn Result = "warn" // allowed, and a client may trip over it
	Skip Result = "skip" // not known
)

// Point is one thing that was looked at.
type Point struct {
	Name   string `json:"name"`
	Source string `json:"source"` // who asks for it
	Result Result `json:"result"`
	Detail string `json:"detail,omitempty"` // the observation; for a failure also the remedy
}

// Report has the results.
type Report struct {
	URL        string  `json:"url"`
	Points     []Point `json:"points"`
	Failed     int     `json:"failed"`
	Executions bool    `json:"executions_counted"`
	Stopped    string  `json:"stopped,omitempty"` // why not all points were looked at
}

const (
	patience = 15 * time.Second // for one answer
	herd     = 12               // requests at the same time
	maxBody  = 1 << 20          // bytes that are read of an answer
)

// service is the one under test.
type service struct {
	o Options
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a answer) ok() bool { return a.err == nil && a.status >= 200 && a.status < 300 }

func (a answer) refused() bool { return a.err == nil && a.status >= 400 && a.status < 500 }

func (a answer) String() string {
	if a.err != nil {
		return "no answer: " + a.err.Error()
	}
	return fmt.Sprintf("status %d", a.status)
}

// Run examines the service. An error means that the examination did not start or end; Report.Stopped
// has the same text. Faults of the service are in the report.
func Run(ctx context.Context, o Options) (Report, error) {
	report := Report{URL: o.URL, Points: []Point{}, Executions: o.Counter != nil}
	err := o.fill()
	if err == nil {
		if o.Client == nil {
			transport := &http.Transport{DisableKeepAlives: true, MaxConnsPerHost: 4 * herd} // a reused connection could be retried
			defer transport.CloseIdleConnections()
			o.Client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		}
		err = (&service{o}).look(ctx, &report)
	}
	if err != nil {
		report.Stopped = err.Error()
	}
	return report, err
}

// fill sets defaults and validates the options.
func (o *Options) fill() error {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("the URL %q is not an absolute one of http or https", o.URL)
	}
	o.Method = cmp.Or(o.Method, http.MethodPost)
	o.Body = cmp.Or(o.Body, `{"amount":100,"currency":"EUR","reference":"`+Unique+`"}`)
	o.Other = cmp.Or(o.Other, `{"amount":999,"currency":"EUR","reference":"`+Unique+`"}`)
	o.Key = cmp.Or(o.Key, "Idempotency-Key")
	if o.Body == o.Other {
		return errors.New("the two bodies are the same; a service cannot tell their requests apart")
	}
	o.Header = o.Header.Clone()
	if o.Header == nil {
		o.Header = http.Header{}
	}
	if o.Header.Get("Content-Type") == "" {
		o.Header.Set("Content-Type", "application/json")
	}
	return nil
}

// look goes through the points.
func (s *service) look(ctx context.Context, report *Report) error {
	note := func(name, source string, look func(op operation) (Result, string)) error {
		if s.o.Progress != nil {
			s.o.Progress(name)
		}
		p := Point{Name: name, Source: source}
		p.Result, p.Detail = look(s.begin(ctx))
		if err := ctx.Err(); err != nil {
			return err
		}
		if report.Points = append(report.Points, p); p.Result == Fail {
			report.Failed++
		}
		return nil
	}
	if err := note(entry, "D07, 2.1", func(op operation) (Result, string) { return accepted(s, op) }); err != nil {
		return err
	}
	if p := report.Points[0]; p.Result == Fail {
		return fmt.Errorf("%s: %s", p.Name, p.Detail)
	}
	for _, c := range checks {
		err := note(c.name, c.source, func(op operation) (Result, string) {
			if !op.first.ok() {
				return Skip, fmt.Sprintf("it needs a request that succeeds, and got %v; is the payload refused because it was seen before? "+
					"Put %s into the body", op.first, Unique)
			}
			return c.look(ctx, s, op)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// post sends a request with these values of the key's header.
func (s *service) post(ctx context.Context, body string, keys ...string) answer {
	return s.postTo(ctx, s.o.URL, body, keys...)
}

// postTo is post to another URL.
func (s *service) postTo(ctx context.Context, to, body string, keys ...string) answer {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, s.o.Method, to, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.GetBody = nil // net/http must not send it again
	req.Header = s.o.Header.Clone()
	if len(keys) > 0 {
		req.Header[http.CanonicalHeaderKey(s.o.Key)] = keys
	}
	res, err := s.o.Client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	return answer{res.StatusCode, res.Header, string(b), err}
}

// runs is how often a body with the stamp has arrived; -1 if the service does not count.
func (s *service) runs(stamp string) int {
	if s.o.Counter == nil {
		return -1
	}
	return s.o.Counter.Runs(stamp)
}

// fresh returns a key that was never used, quoted, and the key itself.
func fresh() (quoted, key string) {
	key = stet.NewKey()
	return `"` + key + `"`, key
}

// stamped returns a body for one operation, and what the counter can tell it by: what
// Unique stands for, or else a member of its own, if it is a JSON object.
func (s *service) stamped(body string) (string, string) {
	stamp := stet.NewKey()
	if strings.Contains(body, Unique) {
		return strings.ReplaceAll(body, Unique, stamp), stamp
	}
	if s.o.Counter == nil {
		return body, ""
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(body), &object) != nil {
		return body + "\n" + stamp, stamp
	}
	object["stet_verify"], _ = json.Marshal(stamp)
	b, _ := json.Marshal(object)
	return string(bytes.TrimSpace(b)), stamp
}
