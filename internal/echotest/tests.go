package echotest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// bench returns a bench and an instance with these middlewares around that of the bench,
// and h behind both at POST /payments.
func (f *Framework[C, H, M, R, G, E]) bench(t *testing.T, h H, around ...M) (*adaptertest.Bench, E) {
	t.Helper()
	b, e := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{}), f.New()
	e.Use(around...)
	e.Add("POST", "/payments", h, f.Middleware(b.Middleware))
	return b, e
}

func (f *Framework[C, H, M, R, G, E]) paid(c C) error { return paid(c) }

func post(t *testing.T, url, body string, header ...string) adaptertest.Reply {
	t.Helper()
	return adaptertest.Send(t, "POST", url, body, header...)
}

const text404 = "{\"message\":\"Not Found\"}\n"

// errorsAreAnsweredInside: once, in the run, and the middleware around receives the error
// of the first call.
func (f *Framework[C, H, M, R, G, E]) errorsAreAnsweredInside(t *testing.T) {
	var errs []error
	_, e := f.bench(t, func(C) error { return errBank }, f.around(nil, func(c C, err error) error {
		errs = append(errs, err)
		if s := f.State(c); s.Status != http.StatusTeapot || !s.Committed {
			t.Errorf("around, the response is %+v", s)
		}
		return err
	}))
	var answered atomic.Int64
	f.SetErrorHandler(e, func(c C, err error) {
		if f.State(c).Committed {
			return
		}
		answered.Add(1)
		if stet.FromContext(c.Request().Context()) == nil {
			t.Error("answered outside of the run")
		}
		_ = c.JSON(http.StatusTeapot, map[string]any{"error": err.Error()})
	})
	url := adaptertest.Serve(t, e) + "/payments"
	for i := range 2 {
		post(t, url, "x").Want(418, "{\"error\":\"the bank is closed\"}\n", i > 0)
	}
	if answered.Load() != 1 || len(errs) != 2 || !errors.Is(errs[0], errBank) || errs[1] != nil {
		t.Errorf("%d answers, errs %v", answered.Load(), errs)
	}
}

// answeredErrorIsNotAnsweredAgain: neither by an error handler that does not check nor by
// middleware around, also if middleware between has replaced the response.
func (f *Framework[C, H, M, R, G, E]) answeredErrorIsNotAnsweredAgain(t *testing.T) {
	again := f.around(nil, func(c C, err error) error {
		if err != nil {
			return c.String(http.StatusTeapot, "again")
		}
		return nil
	})
	test := func(t *testing.T, dropped int, around ...M) {
		runs := 0
		b, e := f.bench(t, func(C) error { runs++; return errBank }, around...)
		f.SetErrorHandler(e, func(c C, err error) { _ = c.String(http.StatusBadGateway, err.Error()) })
		url := adaptertest.Serve(t, e) + "/payments"
		for i := range 2 {
			post(t, url, "x").Want(502, "the bank is closed", i > 0) // the client decompresses
		}
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
		if dropped >= 0 {
			b.WantLog("its bytes were dropped", dropped)
		}
	}
	t.Run("error handler", func(t *testing.T) { test(t, 1) })
	t.Run("middleware", func(t *testing.T) { test(t, 1, again) })
	for name, companions := range f.Companions {
		t.Run(name, func(t *testing.T) { test(t, -1, append([]M{again}, companions...)...) })
	}
}

// errorAfterAResponseRollsBack: a success that was written before the error is not sent.
func (f *Framework[C, H, M, R, G, E]) errorAfterAResponseRollsBack(t *testing.T) {
	b, e := f.bench(t, f.paid)
	e.Add("POST", "/tx", f.HandleTx(b.Tx, func(c C, tx *Tx) error {
		tx.Insert("10")
		return errors.Join(paid(c), errBank)
	}))
	url := adaptertest.Serve(t, e) + "/tx"
	for range 2 {
		post(t, url, "x").WantProblem(503, "not-executed")
	}
	b.WantRows(0)
}

func (f *Framework[C, H, M, R, G, E]) silentErrorHandlerIsLoud(t *testing.T) {
	b, e := f.bench(t, func(C) error { return errBank })
	f.SetErrorHandler(e, func(C, error) {})
	post(t, adaptertest.Serve(t, e)+"/payments", "x").WantProblem(500, "response-missing")
	b.WantLog("without having begun a response", 1)
}

// responsesAreThoseOfEcho compares responses with those of Echo alone, and what handlers
// and the middleware around them find in the response.
func (f *Framework[C, H, M, R, G, E]) responsesAreThoseOfEcho(t *testing.T) {
	file := filepath.Join(t.TempDir(), "receipt.txt")
	if err := os.WriteFile(file, []byte("a receipt"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]H{
		"JSON":          func(c C) error { return c.JSON(http.StatusCreated, map[string]any{"paid": 10}) },
		"String":        func(c C) error { return c.String(http.StatusOK, "paid") },
		"NoContent":     func(c C) error { return c.NoContent(http.StatusNoContent) },
		"Redirect":      func(c C) error { return c.Redirect(http.StatusSeeOther, "/elsewhere") },
		"Attachment":    func(c C) error { return c.Inline(file, "a.txt") },
		"Stream":        func(c C) error { return c.Stream(200, "text/x", strings.NewReader("abc")) },
		"XML":           func(c C) error { return c.XML(200, "a") },
		"header":        func(c C) error { f.Writer(c).Header().Add("X-A", "b"); return c.HTML(200, "<a>") },
		"HTTPError":     func(C) error { return f.HTTPError(http.StatusConflict, "sold out") },
		"another error": func(C) error { return errBank },
		"wrapped error": func(C) error { return fmt.Errorf("charge: %w", f.HTTPError(http.StatusUnauthorized, "Unauthorized")) },
		"error, then header": func(c C) error {
			f.Writer(c).Header().Set("X-A", "b")
			return f.HTTPError(http.StatusConflict, "x")
		},
		"two bodies":       func(c C) error { _ = c.String(200, "a"); return c.String(201, "b") },
		"answer and error": func(c C) error { _ = c.String(200, "a"); return errBank },
		"not serialized":   func(c C) error { return c.JSON(http.StatusOK, make(chan int)) },
		"http.Handler":     f.WrapHandler(http.RedirectHandler("/there", http.StatusFound)),
		"flushed": func(c C) error {
			_ = c.String(200, "a")
			f.Response(c).Flush()
			_, err := f.Writer(c).Write([]byte("b"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
			seen := [2]chan string{make(chan string, 2), make(chan string, 2)}
			url := make([]string, 2)
			for i, m := range []M{f.around(nil, nil), f.Middleware(b.Middleware)} {
				e := f.New()
				e.Use(f.around(nil, func(c C, err error) error {
					if err != nil {
						f.HandleError(c, err) // Echo's own logger does so
					}
					seen[i] <- fmt.Sprint(c.Get("inside"), " outside ", f.State(c), err)
					return err
				}), m)
				e.Add("POST", "/payments", func(c C) error {
					before := fmt.Sprint(f.State(c))
					err := h(c)
					after := f.State(c)
					c.Set("inside", before+fmt.Sprint(" inside ", after.Size, after.Committed))
					return err
				})
				url[i] = adaptertest.Serve(t, e) + "/payments"
			}
			plain, first := post(t, url[0], "x"), post(t, url[1], "x")
			if plain, here := <-seen[0], <-seen[1]; plain != here {
				t.Errorf("Echo's handlers see\n%s, and here\n%s", plain, here)
			}
			plain.Same(first)
			again := post(t, url[1], "x")
			first.Same(again)
			if stored := plain.Status != http.StatusUnauthorized; again.Replayed() != stored { // 401 says that nothing was executed
				t.Errorf("replayed: %v; want %v", again.Replayed(), stored)
			}
		})
	}
}

// context: Options.Scope and the handler find values of outer middleware, which finds values that
// the handler has set.
func (f *Framework[C, H, M, R, G, E]) context(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{Scope: func(r *http.Request) (string, error) {
		c, _ := f.ContextOf(r)
		return c.Get("account").(string) + c.Param("id"), nil
	}})
	e := f.New()
	e.Use(f.around(func(c C) { c.Set("account", "acct_"); c.Set("request", c.Request()) }, func(c C, err error) error {
		if c.Request() != c.Get("request") {
			t.Error("around, the request is another")
		}
		if f.Writer(c).Header().Get("Idempotent-Replayed") == "" && c.Get("amount") != 10 {
			t.Error("a value that was set inside is lost")
		}
		return err
	}), f.Middleware(b.Middleware))
	e.Add("POST", "/accounts/:id/payments", func(c C) error {
		if op := stet.FromContext(c.Request().Context()).Op(); op.Scope != "acct_7" || op.Name != "POST /accounts/:id/payments" {
			t.Errorf("the operation is %+v", op)
		}
		var order struct {
			ID     string `param:"id"`
			Amount int    `json:"amount"`
		}
		if err := c.Bind(&order); err != nil || order.Amount != 10 || order.ID != "7" {
			t.Errorf("bound %+v, %v", order, err)
		}
		c.Set("amount", order.Amount)
		return paid(c)
	})
	url := adaptertest.Serve(t, e) + "/accounts/7/payments"
	for i := range 2 {
		post(t, url, `{"amount":10}`, "Content-Type", "application/json").Want(201, "paid", i > 0)
	}
	if _, ok := f.ContextOf(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)); ok {
		t.Error("a request that is not Echo's has a context of Echo's")
	}
}

// hooks of the response are called when it is sent: those of outer middleware for replays,
// too, and also if the handler streams.
func (f *Framework[C, H, M, R, G, E]) hooks(t *testing.T) {
	for _, stream := range []bool{false, true} {
		after := make(chan int64, 10)
		_, e := f.bench(t, func(c C) error {
			f.Response(c).Before(func() { f.Writer(c).Header().Add("X-Inside", "1") })
			if err := paid(c); err != nil || !stream {
				return err
			}
			f.Response(c).Flush()
			return nil
		}, f.around(func(c C) {
			f.Response(c).Before(func() { f.Writer(c).Header().Add("X-Around", "1") })
			f.Response(c).After(func() { after <- f.State(c).Size })
		}, nil))
		url := adaptertest.Serve(t, e) + "/payments"
		for i := range 2 {
			r := post(t, url, "x")
			r.Want(201, "paid", i > 0)
			if len(r.Header["X-Around"]) != 1 || len(r.Header["X-Inside"]) != 1 {
				t.Errorf("stream %v, replayed %v: the header is %v", stream, i > 0, r.Header)
			}
			if size := <-after; size != 4 && !stream {
				t.Errorf("After sees %d bytes", size)
			}
		}
	}
}

// informationalStatus is not the status of the response.
func (f *Framework[C, H, M, R, G, E]) informationalStatus(t *testing.T) {
	_, e := f.bench(t, func(c C) error {
		f.Writer(c).Header().Set("Link", "</a>; rel=preload")
		f.Response(c).Unwrap().WriteHeader(http.StatusEarlyHints)
		return paid(c)
	})
	hints := 0
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { hints += code; return nil }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, adaptertest.Serve(t, e)+"/payments", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	adaptertest.Do(t, req).Want(201, "paid", false)
	if hints != 103 {
		t.Errorf("hints %d", hints)
	}
}

// unprotectedRequest has Echo's own response, also for an upgrade.
func (f *Framework[C, H, M, R, G, E]) unprotectedRequest(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{Optional: true})
	e := f.New()
	var w http.ResponseWriter
	var r *http.Request
	e.Use(f.around(func(c C) { w, r = f.Writer(c), c.Request() }, nil), f.Middleware(b.Middleware))
	h := func(c C) error {
		if f.Writer(c) != w || c.Request() != r {
			t.Error("the response or the request is another")
		}
		return f.HTTPError(402, "Payment Required")
	}
	e.Add("GET", "/payments", h)
	e.Add("POST", "/payments", h)
	e.Add("GET", "/socket", func(c C) error {
		conn, rw, err := f.Response(c).Hijack()
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		return rw.Flush()
	})
	url := adaptertest.Serve(t, e)
	adaptertest.Send(t, "GET", url+"/payments", "").Want(402, "{\"message\":\"Payment Required\"}\n", false)
	post(t, url+"/payments", "x", "Idempotency-Key", "-").Want(402, "{\"message\":\"Payment Required\"}\n", false)
	adaptertest.Send(t, "GET", url+"/socket", "", "Connection", "Upgrade", "Upgrade", "x").Want(101, "", false)
}

// bodyLimitAround: a body that is too large is refused with 413, also if that is found out
// while it is read.
func (f *Framework[C, H, M, R, G, E]) bodyLimitAround(t *testing.T) {
	_, e := f.bench(t, f.paid, f.Limit)
	url := adaptertest.Serve(t, e) + "/payments"
	const body = "more than ten bytes"
	for name, r := range map[string]io.Reader{"its length is known": strings.NewReader(body), "not known": io.MultiReader(strings.NewReader(body))} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, r)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		if r := adaptertest.Do(t, req); r.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: got %v", name, r)
		}
	}
}

// unknownRouteBehindOthers: inner middleware may answer by itself, so that the request is
// protected. Echo's own answer is not stored.
func (f *Framework[C, H, M, R, G, E]) unknownRouteBehindOthers(t *testing.T) {
	for name, use := range f.BehindOthers {
		b, e := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{}), f.New()
		var inside atomic.Int64
		use(e, f.Middleware(b.Middleware), f.around(func(C) { inside.Add(1) }, nil))
		e.Add("GET", "/receipts", f.paid)
		url := adaptertest.Serve(t, e)
		for range 2 {
			post(t, url+"/typo", "x").Want(404, text404, false)
			post(t, url+"/other", "x").Want(404, text404, false)
		}
		if inside.Load() != 4 {
			t.Errorf("%s: %d runs inside", name, inside.Load())
		}
	}
}

// routeNotFoundIsProtected: a handler of the service for unknown routes may be a proxy.
func (f *Framework[C, H, M, R, G, E]) routeNotFoundIsProtected(t *testing.T) {
	for name, wire := range map[string]func(e E, m M, h H){
		"Use":   func(e E, m M, h H) { e.Use(m); e.RouteNotFound("/*", h) },
		"group": func(e E, m M, h H) { e.Group("", m).RouteNotFound("/*", h) },
		"route": func(e E, m M, h H) { e.RouteNotFound("/*", h, m) },
	} {
		b, e := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{}), f.New()
		runs := 0
		wire(e, f.Middleware(b.Middleware), func(c C) error { runs++; return paid(c) })
		url := adaptertest.Serve(t, e)
		for i := range 2 {
			post(t, url+"/elsewhere", "x").Want(201, "paid", i > 0)
		}
		if runs != 1 {
			t.Errorf("%s: %d runs", name, runs)
		}
	}
}

// pre: before routing there is no pattern to name the operation by.
func (f *Framework[C, H, M, R, G, E]) pre(t *testing.T) {
	b, e := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{}), f.New()
	e.Pre(f.Middleware(b.Middleware))
	e.Add("POST", "/orders/:id", func(c C) error {
		return c.String(201, c.Param("id")+" "+stet.FromContext(c.Request().Context()).Op().Name)
	})
	url := adaptertest.Serve(t, e)
	for i := range 2 {
		post(t, url+"/orders/42", "x").Want(201, "42 POST /orders/42", i > 0)
	}
	post(t, url+"/typo", "x", "Idempotency-Key", "other").Want(404, text404, false)
}

// contextWithoutRouter: a unit test may call middleware without a router.
func (f *Framework[C, H, M, R, G, E]) contextWithoutRouter(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	runs := 0
	h := f.Middleware(b.Middleware)(func(c C) error { runs++; return paid(c) })
	for i := range 2 {
		r, w := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("x")), httptest.NewRecorder()
		r.Header.Set("Idempotency-Key", "k")
		if err := h(f.Bare(r, w)); err != nil || w.Code != 201 || w.Header().Get("Idempotent-Replayed") == "true" != (i > 0) {
			t.Errorf("got %d %v, %v", w.Code, w.Header(), err)
		}
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}
