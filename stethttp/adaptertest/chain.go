package adaptertest

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

const whyTwice = "a middleware inside itself is an error of the wiring: nothing runs, and the key is free once it is corrected"

// chainCases are about middleware around and inside, and about requests without a route.
var chainCases = []testCase{
	{name: "replays end the chain", chains: true, why: "inner middleware runs for requests that run, and for no replay and no refusal; outer middleware gets its own request back, and the status",
		run: func(f *fixture) {
			var inside atomic.Int64
			var mu sync.Mutex
			var seen []int
			f.serveRoute(stet.Options{}, f.options(), Route{Method: "POST", Handle: paid,
				Around: func(c Call, next func() error) error {
					err := next()
					if ctx := c.Context(); ctx.Err() != nil || stet.FromContext(ctx) != nil {
						f.Errorf("around, the context is that of the run, or has ended: %v", ctx.Err())
					}
					if s, ok := c.(interface{ Status() int }); ok {
						mu.Lock()
						defer mu.Unlock()
						seen = append(seen, s.Status())
					}
					return err
				},
				Inside: func(_ Call, next func() error) error { inside.Add(1); return next() }})
			first := f.post("{}")
			f.is("the first", first, 201, "paid")
			f.replays(first, f.post("{}"))
			f.refused("another body", f.post("[]"), 422, "mismatch")
			f.refused("no key", f.post("{}", stethttp.DefaultHeader, "-"), 400, "key-missing")
			f.ran(1)
			if n := inside.Load(); n != 1 {
				f.Errorf("the handlers inside ran %d times; want 1", n)
			}
			if len(seen) > 0 && !slices.Equal(seen, []int{201, 201, 422, 400}) {
				f.Errorf("around, the statuses are %v", seen)
			}
		}},
	{name: "protected twice", chains: true, why: whyTwice,
		run: func(f *fixture) {
			f.serveRoute(stet.Options{}, f.options(), Route{Method: "POST", Twice: true, Handle: paid})
			f.misconfigured()
		}},
	{name: "called again", chains: true, not: Again, why: "Options.Tries calls all that is inside again, with the body from its beginning and a new response",
		run: func(f *fixture) {
			o := f.options()
			o.Tries = 3
			var inside atomic.Int64
			f.serveRoute(stet.Options{Policy: stet.Policy{Outside: true}}, o, Route{Method: "POST",
				Inside: func(_ Call, next func() error) error { inside.Add(1); return next() },
				Handle: func(c Call) error {
					body, err := c.Body()
					if err != nil || string(body) != `{"amount":10}` || c.Param("id") != "42" {
						f.Errorf("call %d: body %s, parameter %s, %v", f.runs.Load(), quote(string(body)), c.Param("id"), err)
					}
					if f.runs.Load() < 3 {
						c.AddHeader("X-Half", "done")
						return errBank
					}
					return c.Send(http.StatusConflict, "text/plain", []byte("sold out"))
				}})
			r := f.post(`{"amount":10}`)
			f.is("the third call", r, 409, "sold out")
			if r.Header.Get("X-Half") != "" {
				f.Errorf("the response has the header of an earlier call")
			}
			f.ran(3)
			if n := inside.Load(); n != 3 {
				f.Errorf("the handlers inside ran %d times; want 3", n)
			}
		}},
	{name: "unknown route", chains: true, why: "the answer 404 or 405 of the framework is no outcome: the request may have been sent to a path with an error in it, and its key is free",
		run: func(f *fixture) {
			f.serveRoute(stet.Options{}, f.options(), Route{Method: "POST", Handle: paid}, Route{Method: "GET", Path: "/receipts", Handle: paid})
			for range 2 {
				for _, path := range []string{"/typo", "/receipts"} {
					for _, key := range []string{`"k"`, "-"} {
						req := f.request("POST", "{}", stethttp.DefaultHeader, key)
						req.URL.Path = path
						if r := f.do(req); key == "-" && f.adapter.lacks(Unrouted) {
							f.refused(path, r, 400, "key-missing")
						} else if r.Status != 404 && r.Status != 405 || r.Replayed() || r.Problem() != "" {
							f.Errorf("%s: got %v; want the framework's 404 or 405", path, r)
						}
					}
				}
			}
			f.is("a route", f.twice(), 201, "paid")
			if f.log.String() != "" {
				f.Errorf("the log has %s", f.log)
			}
		}},
	{name: "write around a response", chains: true, seals: true, why: whySealed,
		run: func(f *fixture) { f.sealed(paid, 201, "paid") }},
	{name: "write around a status alone", chains: true, seals: true, why: whySealed,
		run: func(f *fixture) {
			f.sealed(func(c Call) error { return c.NoContent(http.StatusAccepted) }, 202, "")
		}},
}

const whySealed = "bytes that are added to a stored response would reach the first caller, and no retry"

// sealed requires that writes around the response of a handler fail, and are logged once.
func (f *fixture) sealed(handle func(Call) error, status int, body string) {
	f.Helper()
	f.serveRoute(stet.Options{}, f.options(), Route{Method: "POST", Handle: handle,
		Around: func(c Call, next func() error) error {
			err := next()
			for range 2 {
				if _, failed := c.Writer().Write([]byte("more")); failed == nil {
					f.Errorf("a write has succeeded")
				}
			}
			return err
		}})
	f.is("the first", f.twice(), status, body)
	if n := strings.Count(f.log.String(), "its bytes were dropped"); n != 2 {
		f.Errorf("two responses are logged %d times: %s", n, f.log)
	}
}

// misconfigured requires that a wiring is refused at each request, and that nothing runs.
func (f *fixture) misconfigured() {
	f.Helper()
	for range 2 {
		r := f.post("{}")
		f.refused("protected twice", r, 500, "misconfigured")
		if r.Replayed() {
			f.Errorf("the refusal is stored")
		}
	}
	f.ran(0)
	f.loud()
}
