package stetecho_test

import (
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetecho"
	"github.com/stet-go/stet/stethttp"
)

// around is a middleware that calls before and after what is inside.
func around(before func(*echo.Context), after func(*echo.Context, error) error) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			if before != nil {
				before(c)
			}
			err := next(c)
			if after != nil {
				return after(c, err)
			}
			return err
		}
	}
}

// TestErrorsAreAnsweredInsideByEchosHandler, once, and told to what is around.
func TestErrorsAreAnsweredInsideByEchosHandler(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	var answered, runs atomic.Int64
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		if response(c).Committed {
			return
		}
		answered.Add(1)
		if stet.FromContext(c.Request().Context()) == nil {
			t.Error("answered outside of the run")
		}
		_ = c.JSON(http.StatusTeapot, map[string]any{"error": err.Error()})
	}
	var told []error
	e.Use(around(nil, func(c *echo.Context, err error) error {
		told = append(told, err)
		if res := response(c); res.Status != http.StatusTeapot || !res.Committed {
			t.Errorf("around it, the response is %d, committed %v", res.Status, res.Committed)
		}
		return err
	}), stetecho.Middleware(g.Middleware))
	e.POST("/payments", func(*echo.Context) error { runs.Add(1); return errBank })
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 418, "{\"error\":\"the bank is closed\"}\n", i > 0)
	}
	if runs.Load() != 1 || answered.Load() != 1 || len(told) != 2 || !errors.Is(told[0], errBank) || told[1] != nil || g.log.String() != "" {
		t.Errorf("%d runs, %d answers, told %v; %s", runs.Load(), answered.Load(), told, g.log)
	}
}

// TestErrorIsNotAnsweredTwice by a handler that does not look whether it was.
func TestErrorIsNotAnsweredTwice(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.HTTPErrorHandler = func(c *echo.Context, err error) { _ = c.String(http.StatusBadGateway, err.Error()) }
	e.POST("/payments", func(*echo.Context) error { return errBank }, stetecho.Middleware(g.Middleware))
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 502, "the bank is closed", i > 0)
	}
	if n := strings.Count(g.log.String(), "it was dropped"); n != 1 {
		t.Errorf("told %d times: %s", n, g.log)
	}
}

// TestErrorAfterAResponseChangesNothing, as in Echo.
func TestErrorAfterAResponseChangesNothing(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.POST("/payments", func(c *echo.Context) error { return errors.Join(paid(c), errBank) }, stetecho.Middleware(g.Middleware))
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 201, "paid", i > 0)
	}
}

// TestErrorAfterAResponseRollsBack: who returns an error counts on that. So a success that
// was written before is not told.
func TestErrorAfterAResponseRollsBack(t *testing.T) {
	store, m := books(t, stethttp.Options{})
	e := instance()
	e.POST("/payments", stetecho.HandleTx(m, func(c *echo.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(c.Request().Context(), `INSERT INTO payments VALUES ('10')`); err != nil {
			return err
		}
		return errors.Join(paid(c), errBank)
	}))
	url := serve(t, e)
	for range 2 {
		send(t, "POST", url+"/payments", "x").wantProblem(t, 503, "not-executed")
	}
	wantPayments(t, store, 0)
}

// TestMarkedErrorCounts as in stet.Do.
func TestMarkedErrorCounts(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	runs := 0
	e.POST("/payments", func(c *echo.Context) error {
		if runs++; runs == 1 {
			return stet.Retryable(echo.NewHTTPError(http.StatusBadGateway, "later"))
		}
		return paid(c)
	}, stetecho.Middleware(g.Middleware))
	url := serve(t, e)
	send(t, "POST", url+"/payments", "x").want(t, 502, "{\"message\":\"later\"}\n", false)
	send(t, "POST", url+"/payments", "x").want(t, 201, "paid", false)
	send(t, "POST", url+"/payments", "x").want(t, 201, "paid", true)
}

// TestErrorRollsBack_AndItsRefusalIsStored. A 422 that the handler wrote itself commits.
func TestErrorRollsBack_AndItsRefusalIsStored(t *testing.T) {
	store, m := books(t, stethttp.Options{})
	pay := func(c *echo.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(c.Request().Context(), `INSERT INTO payments VALUES ('10')`); err != nil {
			return err
		}
		if c.Request().Header.Get("Refuse") != "" {
			return c.String(http.StatusUnprocessableEntity, "no")
		}
		return echo.NewHTTPError(http.StatusUnprocessableEntity, "no")
	}
	e := instance()
	e.POST("/payments", stetecho.HandleTx(m, pay))
	e.POST("/inside", func(c *echo.Context) error { return pay(c, stethttp.Tx[*sql.Tx](c.Request().Context())) }, stetecho.Middleware(m.Middleware))
	url := serve(t, e)
	for _, path := range []string{"/payments", "/inside"} {
		for i := range 2 {
			send(t, "POST", url+path, "x", "Idempotency-Key", path).want(t, 422, "{\"message\":\"no\"}\n", i > 0)
		}
	}
	wantPayments(t, store, 0)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x", "Idempotency-Key", "other", "Refuse", "yes").want(t, 422, "no", i > 0)
	}
	wantPayments(t, store, 1)
}

// TestRefusedErrorIsAnOutcomeOfALease: its effects cannot be undone.
func TestRefusedErrorIsAnOutcomeOfALease(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	runs := 0
	e.POST("/orders/:id", func(*echo.Context) error { runs++; return echo.ErrNotFound }, stetecho.Middleware(g.Middleware))
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/orders/1", "x").want(t, 404, "{\"message\":\"Not Found\"}\n", i > 0)
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

func TestErrorHandlerThatIsSilentIsLoud(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.HTTPErrorHandler = func(*echo.Context, error) {}
	e.POST("/payments", func(*echo.Context) error { return errBank }, stetecho.Middleware(g.Middleware))
	send(t, "POST", serve(t, e)+"/payments", "x").wantProblem(t, 500, "response-missing")
	g.wantLog(t, "without having begun a response")
}

// TestNothingIsAddedToAResponseThatStands by what is around: the first caller would get
// what no retry gets.
func TestNothingIsAddedToAResponseThatStands(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	var failed error
	e.Use(around(nil, func(c *echo.Context, err error) error {
		_, failed = c.Response().Write([]byte("more"))
		return err
	}), stetecho.Middleware(g.Middleware))
	e.POST("/payments", paid)
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 201, "paid", i > 0)
	}
	if failed == nil {
		t.Error("a write to a response that stands has succeeded")
	}
	g.wantLog(t, "it was dropped")
}

func TestPanicIsAnsweredByRecover(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	runs := 0
	e.POST("/payments", func(c *echo.Context) error {
		runs++
		c.Response().Header().Set("X-Half", "done")
		_ = paid(c)
		panic("no money")
	}, stetecho.Middleware(g.Middleware))
	url := serve(t, e)
	first := send(t, "POST", url+"/payments", "x")
	first.want(t, 500, "{\"message\":\"Internal Server Error\"}\n", false)
	if first.header.Get("X-Half") != "" {
		t.Error("the answer has the header of what panicked")
	}
	send(t, "POST", url+"/payments", "x").wantProblem(t, 500, "handler-panicked")
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

// TestNothingIsAddedToAStreamThatIsCut: the client must not take it for the end.
func TestNothingIsAddedToAStreamThatIsCut(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.HTTPErrorHandler = func(c *echo.Context, err error) { _ = c.String(http.StatusBadGateway, "panicked") }
	e.POST("/payments", func(c *echo.Context) error {
		_ = c.String(http.StatusOK, "begun")
		response(c).Flush()
		panic("no money")
	}, stetecho.Middleware(g.Middleware))
	if r := send(t, "POST", serve(t, e)+"/payments", "x"); r.err == nil || strings.Contains(r.body, "panicked") {
		t.Errorf("got %d %q, and no error", r.status, r.body)
	}
}

// TestReplaysAndRefusalsDoNotGoInside, and what is around sees them.
func TestReplaysAndRefusalsDoNotGoInside(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	var seen []int
	var inside, runs int
	e.Use(around(nil, func(c *echo.Context, err error) error {
		if !response(c).Committed || err != nil {
			t.Errorf("committed %v, %v", response(c).Committed, err)
		}
		seen = append(seen, response(c).Status)
		return err
	}), stetecho.Middleware(g.Middleware), around(func(*echo.Context) { inside++ }, nil))
	e.POST("/payments", func(c *echo.Context) error { runs++; return paid(c) })
	url := serve(t, e) + "/payments"
	send(t, "POST", url, "x").want(t, 201, "paid", false)
	send(t, "POST", url, "x").want(t, 201, "paid", true)
	send(t, "POST", url, "y").wantProblem(t, 422, "mismatch")
	send(t, "POST", url, "x", "Idempotency-Key", "-").wantProblem(t, 400, "key-missing")
	if runs != 1 || inside != 1 {
		t.Errorf("%d runs, %d inside; want 1, 1", runs, inside)
	}
	if len(seen) != 4 || seen[0] != 201 || seen[1] != 201 || seen[2] != 422 || seen[3] != 400 {
		t.Errorf("around it, the statuses are %v", seen)
	}
}

// TestProtectedTwiceIsMisconfigured at each request, and nothing runs.
func TestProtectedTwiceIsMisconfigured(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	_, tx := books(t, stethttp.Options{ErrorLog: g.Log()})
	e := instance()
	runs := 0
	run := func(c *echo.Context) error { runs++; return paid(c) }
	e.Group("", stetecho.Middleware(g.Middleware)).POST("/twice", run, stetecho.Middleware(g.Middleware))
	e.POST("/tx", stetecho.HandleTx(tx, func(c *echo.Context, _ *sql.Tx) error { return run(c) }), stetecho.Middleware(tx.Middleware))
	url := serve(t, e)
	for range 2 {
		send(t, "POST", url+"/twice", "x").wantProblem(t, 500, "misconfigured")
		send(t, "POST", url+"/tx", "x").wantProblem(t, 500, "misconfigured")
	}
	if runs != 0 {
		t.Errorf("%d runs", runs)
	}
	g.wantLog(t, "inside itself")
}

// TestHandlerIsCalledAgainThroughWhatIsInside, with its body from the beginning.
func TestHandlerIsCalledAgainThroughWhatIsInside(t *testing.T) {
	g := newGuard(t, stet.Options{Policy: stet.Policy{Outside: true}}, stethttp.Options{Tries: 3})
	e := instance()
	var inside, runs atomic.Int64
	e.Use(stetecho.Middleware(g.Middleware), around(func(*echo.Context) { inside.Add(1) }, nil))
	e.POST("/orders/:id", func(c *echo.Context) error {
		if n := runs.Add(1); n < 3 {
			return errBank
		}
		if c.FormValue("amount") != "10" || c.Param("id") != "42" {
			t.Errorf("form %v, parameter %q", c.Request().Form, c.Param("id"))
		}
		return c.String(http.StatusConflict, "sold out")
	})
	send(t, "POST", serve(t, e)+"/orders/42", "amount=10", "Content-Type", "application/x-www-form-urlencoded").want(t, 409, "sold out", false)
	if inside.Load() != 3 || runs.Load() != 3 {
		t.Errorf("%d runs, %d of the middleware inside; want 3", runs.Load(), inside.Load())
	}
}

// TestUnprotectedRequestHasNoTransaction, so the handler that needs one is not called.
func TestUnprotectedRequestHasNoTransaction(t *testing.T) {
	_, m := books(t, stethttp.Options{Optional: true})
	e := instance()
	e.POST("/payments", stetecho.HandleTx(m, func(*echo.Context, *sql.Tx) error { t.Error("called"); return nil }))
	send(t, "POST", serve(t, e)+"/payments", "x", "Idempotency-Key", "-").want(t, 500, "{\"message\":\"Internal Server Error\"}\n", false)
}

func TestWrongWiringPanicsAtOnce(t *testing.T) {
	for name, wire := range map[string]func(){
		"Middleware needs what stethttp.New returns":  func() { stetecho.Middleware(nil) },
		"HandleTx needs what stethttp.NewTx returns":  func() { stetecho.HandleTx(nil, func(*echo.Context, *sql.Tx) error { return nil }) },
		"HandleTx needs a handler":                    func() { _, m := books(t, stethttp.Options{}); stetecho.HandleTx(m, nil) },
		"HandleTx needs what stethttp.NewTx returns ": func() { stetecho.HandleTx(&stethttp.TxMiddleware[*sql.Tx]{}, nil) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, strings.TrimSpace(name)) {
					t.Errorf("it says %q; want %q", text, name)
				}
			}()
			wire()
		}()
	}
}
