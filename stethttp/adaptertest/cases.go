package adaptertest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// grace is how long a server may take to find out that its client has left.
const grace = 100 * time.Millisecond

func itoa(n int) string     { return strconv.Itoa(n) }
func quote(s string) string { return strconv.Quote(s) }

func show(h http.Header) string {
	var b bytes.Buffer
	_ = h.Write(&b)
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\r\n", "; ")
}

// bank is a body with bytes that text does not have.
var bank = []byte("paid\x00\xff\xfe\r\n 10 €")

// answerCases are about the responses of a handler.
var answerCases = []testCase{
	{name: "replay byte for byte", why: "a retry must get the status, header and body of the first response, which may not have reached its caller",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				c.AddHeader("X-Order", "42")
				c.AddHeader("Link", "</a>; rel=a")
				c.AddHeader("Link", "</b>; rel=b")
				return c.Send(http.StatusCreated, "application/x-receipt", bank)
			})
			first := f.twice()
			f.is("a response", first, http.StatusCreated, string(bank))
			links := []string{"</a>; rel=a", "</b>; rel=b"}
			if f.adapter.lacks(Fields) {
				links = []string{"</a>; rel=a, </b>; rel=b"}
			}
			if first.Header.Get("Content-Type") != "application/x-receipt" || !slices.Equal(first.Header["Link"], links) || first.Header.Get("X-Order") != "42" {
				f.Errorf("the header of the first response is %s", show(first.Header))
			}
		}},
	{name: "204", why: "a response without content is a response, also for an adapter that waits for a write",
		run: func(f *fixture) {
			f.serve(func(c Call) error { return c.NoContent(http.StatusNoContent) })
			f.is("NoContent(204)", f.twice(), http.StatusNoContent, "")
		}},
	{name: "status alone", why: "some frameworks write a status when all middleware has returned, without stet",
		run: func(f *fixture) {
			f.serve(func(c Call) error { return c.NoContent(http.StatusAccepted) })
			f.is("NoContent(202)", f.twice(), http.StatusAccepted, "")
		}},
	{name: "implicit 200", why: "a handler that writes without a status means 200",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				_, err := c.Writer().Write([]byte("paid"))
				return err
			})
			f.is("a write", f.twice(), http.StatusOK, "paid")
		}},
	{name: "nothing written", why: "a handler without a response has no outcome: an empty 200 would look like a success",
		not: Missing, run: func(f *fixture) {
			f.serve(func(Call) error { return nil })
			f.refused("nothing written", f.post("{}"), 500, "response-missing")
			f.refused("the retry", f.post("{}"), 504, "outcome-unknown")
			f.ran(1)
			f.loud()
		}},
	{name: "nothing written, which is allowed", why: "Options.AllowEmpty makes it an empty 200, which is stored like any other",
		run: func(f *fixture) {
			o := f.options()
			o.AllowEmpty = true
			f.serveWith(stet.Options{}, o, "POST", func(Call) error { return nil })
			f.is("nothing written", f.twice(), http.StatusOK, "")
		}},
}

// endingCases are about handlers that end without a response of their own.
var endingCases = []testCase{
	{name: "returned error", why: "the framework's error handler must respond inside of the middleware: a response outside is not stored, and the retry gets another",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				c.AddHeader("X-Bank", "closed")
				return errBank
			})
			if first := f.twice(); first.Status != f.adapter.ErrorStatus || first.Problem() != "" {
				f.Errorf("got %v; want the response of the framework's error handler, with status %d", first, f.adapter.ErrorStatus)
			}
		}},
	{name: "abort without body", why: "a handler that ends the request with a status alone has responded",
		run: func(f *fixture) {
			f.serve(func(c Call) error { return c.Abort(http.StatusPaymentRequired, "") })
			if first := f.twice(); first.Status != http.StatusPaymentRequired {
				f.Errorf("got %v; want 402", first)
			}
		}},
	{name: "abort with body", why: "the same with a reason, which retries must get",
		run: func(f *fixture) {
			f.serve(func(c Call) error { return c.Abort(http.StatusPaymentRequired, "no money") })
			if first := f.twice(); first.Status != http.StatusPaymentRequired || !strings.Contains(first.Body, "no money") {
				f.Errorf("got %v; want 402 with the reason", first)
			}
		}},
	{name: "panic", why: "a handler that panics may have had its effect: it does not run again, and the response is no success",
		run: func(f *fixture) {
			f.serve(func(c Call) error { panic(http.ErrAbortHandler) })
			f.failed("the first", f.post("{}"))
			again := f.post("{}")
			f.refused("the retry", again, 500, "handler-panicked")
			f.ran(1)
		}},
	{name: "panic after a write", why: "bytes that were written before the panic are no response",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				_ = c.Send(http.StatusCreated, "text/plain", []byte("paid"))
				panic(http.ErrAbortHandler)
			})
			f.failed("the first", f.post("{}"))
			f.failed("the retry", f.post("{}"))
			f.ran(1)
		}},
	{name: "panic with a value", why: "recovery around the middleware responds after a panic, without any byte or field of the handler",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				c.AddHeader("X-Half", "done")
				_ = c.Send(http.StatusCreated, "text/plain", []byte("pa"))
				panic("no money")
			})
			first := f.post("{}")
			f.failed("the first", first)
			if f.adapter.Recovers && first.Err != nil || first.Header.Get("X-Half") != "" {
				f.Errorf("the first: got %v; want the response of the recovery", first)
			}
			f.refused("the retry", f.post("{}"), 500, "handler-panicked")
			f.ran(1)
		}},
	{name: "panic after a flush", not: Streaming, why: "a response that has begun is cut: the client must not take a part for the whole",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				_, _ = c.Writer().Write([]byte("begun"))
				_ = c.Flush()
				panic("no money")
			})
			if r := f.post("{}"); r.Err == nil {
				f.Errorf("got %v; want a connection that is cut", r)
			}
			f.failed("the retry", f.post("{}"))
			f.ran(1)
		}},
	{name: "404 of a handler", why: "an error with status 404 that a handler returns is its outcome, not a missing route",
		run: func(f *fixture) {
			f.serve(func(c Call) error { return c.Abort(http.StatusNotFound, "") })
			if first := f.twice(); first.Status != http.StatusNotFound {
				f.Errorf("got %v; want 404", first)
			}
		}},
	{name: "marked error", why: "stet.Retryable states that nothing was executed: the error gets its response, and a retry runs again",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				if f.runs.Load() == 1 {
					return stet.Retryable(errBank)
				}
				return paid(c)
			})
			if r := f.post("{}"); r.Status < 500 || r.Problem() != "" || r.Replayed() {
				f.Errorf("the first: got %v; want the response of the framework's error handler", r)
			}
			first := f.post("{}")
			f.is("the second", first, 201, "paid")
			f.replays(first, f.post("{}"))
			f.ran(2)
		}},
	{name: "not executed", why: "a response that states that nothing was executed is sent and not stored, and a retry runs again",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				if f.runs.Load() == 1 {
					c.AddHeader("Retry-After", "1")
					return c.Send(http.StatusServiceUnavailable, "text/plain", []byte("later"))
				}
				return c.Send(http.StatusCreated, "text/plain", []byte("paid"))
			})
			f.is("the first", f.post("{}"), http.StatusServiceUnavailable, "later")
			f.is("the second", f.post("{}"), http.StatusCreated, "paid")
			f.is("the third", f.post("{}"), http.StatusCreated, "paid")
			f.ran(2)
		}},
}

// requestCases are about requests, and concurrent requests.
var requestCases = []testCase{
	{name: "repeated key", why: "a request with two keys is ambiguous, so it is refused",
		run: func(f *fixture) {
			f.serve(paid)
			req := f.request("POST", "{}")
			req.Header["Idempotency-Key"] = []string{"k1", "k2"}
			problem := "key-repeated"
			if f.adapter.lacks(Fields) {
				problem = "key-invalid"
			}
			f.refused("two keys", f.do(req), 400, problem)
			f.ran(0)
		}},
	{name: "key in the body", why: "a request without a key reaches its handler with its body, although the middleware has read it",
		run: func(f *fixture) {
			o := f.options()
			o.Optional, o.KeyPolicy.Pointer = true, "/id"
			f.serveWith(stet.Options{}, o, "POST", func(c Call) error {
				body, err := c.Body()
				if err != nil {
					return err
				}
				return c.Send(200, "application/json", body)
			})
			for i := range 2 {
				f.is("without a key", f.post(`{"amount":1}`, stethttp.DefaultHeader, "-"), 200, `{"amount":1}`)
				keyed := f.post(`{"id":"1"}`, stethttp.DefaultHeader, "-")
				f.is("with a key", keyed, 200, `{"id":"1"}`)
				if keyed.Replayed() != (i > 0) {
					f.Errorf("replayed: %v", keyed.Replayed())
				}
			}
			f.ran(3)
		}},
	{name: "missing key", why: "a request without a key is refused, and not run unprotected",
		run: func(f *fixture) {
			f.serve(paid)
			f.refused("no key", f.post("{}", "Idempotency-Key", "-"), 400, "key-missing")
			f.ran(0)
		}},
	{name: "another request with the key", why: "a key of another request is a defect of the client; the response must not be a success",
		run: func(f *fixture) {
			f.serve(paid)
			f.is("the first", f.post(`{"amount":10}`), 201, "paid")
			f.refused("another body", f.post(`{"amount":99}`), 422, "mismatch")
			f.ran(1)
		}},
	{name: "keys of two accounts", why: "no caller gets the response of another",
		run: func(f *fixture) {
			f.serve(paid)
			f.is("one account", f.post("{}"), 201, "paid")
			other := f.post("{}", "Account", "b")
			f.is("another account", other, 201, "paid")
			if other.Replayed() {
				f.Errorf("an account has got the response of another")
			}
			f.ran(2)
		}},
	{name: "route parameters", why: "the framework calls the handler, so its router's parameters are set",
		run: func(f *fixture) {
			f.serve(func(c Call) error { return c.Send(200, "text/plain", []byte("order "+c.Param("id"))) })
			f.is("the parameter", f.twice(), 200, "order 42")
		}},
	{name: "run in the context", why: "the handler needs its run in the context: to derive keys, and to declare that nothing was executed",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				run := stet.FromContext(c.Context())
				if run == nil {
					return c.Send(200, "text/plain", []byte("no run"))
				}
				return c.Send(200, "text/plain", []byte(run.Op().Scope+" "+run.Op().Key))
			})
			f.is("the run", f.twice(), 200, "a k")
		}},
	{name: "duplicate while running", why: "a duplicate must not run while the first runs",
		run: func(f *fixture) {
			entered, leave := newOnce(), newOnce()
			f.serve(func(c Call) error {
				entered.close()
				if f.runs.Load() == 1 {
					<-leave.c
				}
				return paid(c)
			})
			defer leave.close()
			first := make(chan Reply, 1)
			go func() { first <- f.post("{}") }()
			wait(f, "the first run", entered.c)
			again := f.post("{}")
			f.refused("the duplicate", again, 409, "in-flight")
			if again.Header.Get("Retry-After") == "" {
				f.Errorf("it has no Retry-After: %v", again)
			}
			waited := make(chan Reply, 1)
			go func() { waited <- f.post("{}", "Prefer", "wait=10") }()
			leave.close()
			f.is("the first", <-first, 201, "paid")
			f.is("the duplicate that waits", <-waited, 201, "paid")
			f.ran(1)
		}},
	{name: "client that leaves", why: "the operation continues when its caller leaves, and the caller's retry gets the outcome",
		run: func(f *fixture) {
			entered, leave := newOnce(), newOnce()
			f.serve(func(c Call) error {
				entered.close()
				<-leave.c
				select {
				case <-c.Context().Done():
					return context.Cause(c.Context())
				case <-time.After(grace):
					return paid(c)
				}
			})
			defer leave.close()
			ctx, cancel := context.WithCancel(context.Background())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				f.do(f.request("POST", "{}").WithContext(ctx))
			}()
			wait(f, "the first run", entered.c)
			cancel()
			wait(f, "the end of the client's call", gone)
			waited := make(chan Reply, 1)
			go func() { waited <- f.post("{}", "Prefer", "wait=10") }()
			leave.close()
			f.is("the retry", <-waited, 201, "paid")
			f.ran(1)
		}},
}

func paid(c Call) error { return c.Send(http.StatusCreated, "text/plain", []byte("paid")) }

// streamCases are about responses that come in parts.
var streamCases = []testCase{
	{name: "streaming", why: "the first caller gets a part when the handler flushes it, and a retry gets all parts",
		run: func(f *fixture) { f.streams("text/plain", "begun\n", "paid\n") }},
	{name: "SSE", why: "a stream of events is a response: a retry gets all events",
		run: func(f *fixture) {
			f.streams("text/event-stream", "event: begun\ndata: 1\n\n", "event: paid\ndata: 2\n\n")
		}},
	{name: "late write", why: "a goroutine that outlives its handler must not write into a response, a stored response, or another's response",
		not: LateWrites, run: func(f *fixture) {
			answered, wrote := newOnce(), newOnce()
			f.serve(func(c Call) error {
				if f.runs.Load() == 1 {
					w := c.Writer()
					go func() {
						defer wrote.close()
						<-answered.c
						_, _ = w.Write([]byte("late"))
					}()
				}
				return paid(c)
			})
			defer answered.close()
			first := f.post("{}")
			f.is("the first", first, 201, "paid")
			answered.close()
			wait(f, "the late write", wrote.c)
			f.replays(first, f.post("{}"))
			f.is("another request", f.post("{}", "Idempotency-Key", "other"), 201, "paid")
			f.ran(2)
		}},
	{name: "hijack", why: "bytes over a hijacked connection could not be replayed; the error names the option for such requests",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				if w, ok := c.Writer().(http.ResponseWriter); ok {
					if _, _, err := http.NewResponseController(w).Hijack(); err == nil || !strings.Contains(err.Error(), "Options.Skip") {
						f.Errorf("Hijack returned %v", err)
					}
				}
				return paid(c)
			})
			f.is("the first", f.post("{}"), 201, "paid")
		}},
	{name: "HEAD", why: "the response to a HEAD has a header and no content, and so has its replay",
		run: func(f *fixture) {
			o := f.options()
			o.Methods = []string{"HEAD"}
			f.serveWith(stet.Options{}, o, "HEAD", func(c Call) error {
				c.AddHeader("X-Order", "42")
				return c.Send(http.StatusOK, "text/plain", []byte("paid"))
			})
			first := f.do(f.request("HEAD", ""))
			f.is("the first", first, 200, "")
			f.replays(first, f.do(f.request("HEAD", "")))
			if first.Header.Get("X-Order") != "42" {
				f.Errorf("the header is %s", show(first.Header))
			}
			f.ran(1)
		}},
}

// streams sends two parts, and sees the first before the second is written.
func (f *fixture) streams(contentType, one, two string) {
	f.Helper()
	seen := newOnce()
	f.serve(func(c Call) error {
		c.AddHeader("Content-Type", contentType)
		w := c.Writer()
		if _, err := io.WriteString(w, one); err != nil {
			return err
		}
		if err := c.Flush(); err != nil {
			return err
		}
		if !f.adapter.lacks(Streaming) {
			<-seen.c
		}
		_, err := io.WriteString(w, two)
		return err
	})
	defer seen.close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := f.client.Do(f.request("POST", "{}").WithContext(ctx))
	if err != nil {
		f.Fatalf("the first caller has not received the flushed part: %v", err)
	}
	defer res.Body.Close()
	part := make([]byte, len(one))
	r := bufio.NewReader(res.Body)
	if _, err := io.ReadFull(r, part); err != nil || string(part) != one {
		f.Fatalf("the first part is %q, %v", part, err)
	}
	seen.close()
	rest, err := io.ReadAll(r)
	first := Reply{res.StatusCode, res.Header, string(part) + string(rest), err, f}
	f.is("the first", first, 200, one+two)
	if got := res.Header.Get("Content-Type"); got != contentType {
		f.Errorf("its Content-Type is %q; want %q", got, contentType)
	}
	f.replays(first, f.post("{}"))
	f.ran(1)
}

// bodyCases are about sizes.
var bodyCases = []testCase{
	{name: "large body", why: "the handler reads the whole body although the middleware has read it, and a large response is stored whole",
		run: func(f *fixture) {
			f.serve(func(c Call) error {
				body, err := c.Body()
				if err != nil {
					return err
				}
				return c.Send(200, "application/json", append(body, body...))
			})
			body := `"` + strings.Repeat("0123456789", 30000) + `"`
			first := f.post(body)
			f.is("the first", first, 200, body+body)
			f.replays(first, f.post(body))
			f.ran(1)
		}},
	{name: "body that is too large", why: "a body above Options.MaxBody is refused before anything is executed",
		run: func(f *fixture) {
			o := f.options()
			o.MaxBody = 10
			f.serveWith(stet.Options{}, o, "POST", paid)
			f.refused("11 bytes", f.post("01234567890"), 413, "body-too-large")
			f.ran(0)
		}},
	{name: "response that is too large to store", why: "the first caller gets it whole, and a retry gets 410: executed before",
		run: func(f *fixture) {
			text := strings.Repeat("0123456789", 1000)
			f.serveWith(stet.Options{Policy: stet.Policy{MaxResult: 1000}}, f.options(), "POST", func(c Call) error {
				return c.Send(200, "text/plain", []byte(text))
			})
			f.is("the first", f.post("{}"), 200, text)
			f.refused("the retry", f.post("{}"), 410, "result-expired")
			f.ran(1)
		}},
}

// storeCases are about a store that fails.
var storeCases = []testCase{
	{name: "store that is down", why: "without a claim nothing is executed",
		run: func(f *fixture) {
			f.serve(paid)
			f.store.noClaim.Store(true)
			f.refused("no claim", f.post("{}"), 503, "store-unavailable")
			f.ran(0)
			f.store.noClaim.Store(false)
			f.is("afterwards", f.post("{}"), 201, "paid")
		}},
	{name: "outcome that is not durable", why: "a response is sent when its outcome is durable: otherwise a retry could get another response after a success",
		run: func(f *fixture) {
			f.serve(paid)
			f.store.noSettle.Store(true)
			f.refused("not settled", f.post("{}"), 504, "outcome-unknown")
			f.ran(1)
		}},
}
