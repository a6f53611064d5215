package stetgin_test

import (
	"database/sql"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetgin"
	"github.com/stet-go/stet/stethttp"
)

// TestErrorsAnsweredAroundAreLoud: gin.Context.Error with an error middleware that is
// registered before has no answer yet when the outcome is stored.
func TestErrorsAnsweredAroundAreLoud(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	e.Use(func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 {
			c.JSON(http.StatusBadRequest, gin.H{"error": c.Errors.Last().Error()})
		}
	}, stetgin.Middleware(g.Middleware))
	e.POST("/payments", func(c *gin.Context) { _ = c.Error(errBank) })
	url := serve(t, e)
	send(t, "POST", url+"/payments", "x").wantProblem(t, 500, "response-missing")
	send(t, "POST", url+"/payments", "x").wantProblem(t, 504, "outcome-unknown")
	g.wantLog(t, "register the middleware that answers errors after stetgin's")
}

func TestErrorsAnsweredInsideAreTheOutcome(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	runs := 0
	e.Use(stetgin.Middleware(g.Middleware), answerErrors)
	e.POST("/payments", func(c *gin.Context) { runs++; _ = c.Error(errBank) })
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 500, `{"error":"the bank is closed"}`, i > 0)
	}
	if runs != 1 || g.log.String() != "" {
		t.Errorf("%d runs; %s", runs, g.log)
	}
}

// TestNothingIsAddedToAResponseThatStands by what is around: the first caller would get
// what no retry gets.
func TestNothingIsAddedToAResponseThatStands(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	var failed error
	e.Use(func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 {
			c.JSON(-1, c.Errors)
			_, failed = c.Writer.WriteString("more")
		}
	}, stetgin.Middleware(g.Middleware))
	e.POST("/payments", func(c *gin.Context) { _ = c.AbortWithError(http.StatusPaymentRequired, errBank) })
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 402, "", i > 0)
	}
	if failed == nil {
		t.Error("a write to a response that stands has succeeded")
	}
	if n := strings.Count(g.log.String(), "it was dropped"); n != 1 {
		t.Errorf("told %d times: %s", n, g.log)
	}
}

// holding is a writer of what is around that holds content back.
type holding struct {
	gin.ResponseWriter
	held []byte
}

func (w *holding) Write(p []byte) (int, error) { w.held = append(w.held, p...); return len(p), nil }

// TestWhatHoldsContentBackMayAddFields, as without stet, and adds nothing else.
func TestWhatHoldsContentBackMayAddFields(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	r := engine()
	r.Use(func(c *gin.Context) {
		w := &holding{ResponseWriter: c.Writer}
		c.Writer = w
		c.Next()
		_, _ = c.Writer.Write([]byte("more"))
		w.Header().Set("X-Length", strconv.Itoa(len(w.held)))
		_, _ = w.ResponseWriter.Write(w.held)
	}, stetgin.Middleware(g.Middleware))
	r.POST("/payments", paid)
	url := serve(t, r) + "/payments"
	for i := range 2 {
		reply := send(t, "POST", url, "x")
		if reply.want(t, 201, "paid", i > 0); reply.header.Get("X-Length") != "4" {
			t.Errorf("the header is %v", reply.header)
		}
	}
}

func TestPanicIsAnsweredByRecovery(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, v any) { c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"panic": v}) }),
		stetgin.Middleware(g.Middleware))
	runs := 0
	e.POST("/payments", func(c *gin.Context) {
		runs++
		c.Header("X-Half", "done")
		c.String(http.StatusCreated, "pa")
		panic("no money")
	})
	url := serve(t, e)
	first := send(t, "POST", url+"/payments", "x")
	first.want(t, 500, `{"panic":"no money"}`, false)
	if first.header.Get("X-Half") != "" {
		t.Error("the answer has the header of what panicked")
	}
	send(t, "POST", url+"/payments", "x").wantProblem(t, 500, "handler-panicked")
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

// TestPanicThatRecoveryLeavesUnansweredIsNoSuccess: it takes some for a connection that
// is broken, and Gin would answer with an empty 200.
func TestPanicThatRecoveryLeavesUnansweredIsNoSuccess(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	e.POST("/payments", stetgin.Middleware(g.Middleware), func(*gin.Context) { panic(http.ErrAbortHandler) })
	if r := send(t, "POST", serve(t, e)+"/payments", "x"); r.err == nil && r.status < 500 {
		t.Errorf("got %d %q", r.status, r.body)
	}
}

// TestRecoveryAddsNothingToAStreamThatIsCut: the client must not take it for the end.
func TestRecoveryAddsNothingToAStreamThatIsCut(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, v any) { c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"panic": v}) }))
	e.POST("/payments", stetgin.Middleware(g.Middleware), func(c *gin.Context) {
		c.String(http.StatusOK, "begun")
		c.Writer.Flush()
		panic("no money")
	})
	if r := send(t, "POST", serve(t, e)+"/payments", "x"); r.err == nil || strings.Contains(r.body, "panic") {
		t.Errorf("got %d %q, and no error", r.status, r.body)
	}
}

// TestReplaysAndRefusalsEndTheChain, and what is around sees them.
func TestReplaysAndRefusalsEndTheChain(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	var seen []int
	var inside, runs int
	e.Use(func(c *gin.Context) {
		c.Next()
		if !c.Writer.Written() || c.Writer.Size() < 0 {
			t.Error("nothing is written")
		}
		if c.Writer.Status() != 201 && !c.IsAborted() {
			t.Error("not aborted")
		}
		seen = append(seen, c.Writer.Status())
	}, stetgin.Middleware(g.Middleware), func(*gin.Context) { inside++ })
	e.POST("/payments", func(c *gin.Context) { runs++; paid(c) }, func(*gin.Context) { inside++ })
	url := serve(t, e) + "/payments"
	send(t, "POST", url, "x").want(t, 201, "paid", false)
	send(t, "POST", url, "x").want(t, 201, "paid", true)
	send(t, "POST", url, "y").wantProblem(t, 422, "mismatch")
	send(t, "POST", url, "x", "Idempotency-Key", "-").wantProblem(t, 400, "key-missing")
	if runs != 1 || inside != 2 {
		t.Errorf("%d runs, %d handlers around them inside; want 1, 2", runs, inside)
	}
	if len(seen) != 4 || seen[0] != 201 || seen[1] != 201 || seen[2] != 422 || seen[3] != 400 {
		t.Errorf("around it, the statuses are %v", seen)
	}
}

// TestUnknownRouteIsNoOutcome, though Gin runs all middleware of the engine for it.
func TestUnknownRouteIsNoOutcome(t *testing.T) {
	for _, after := range []gin.HandlerFunc{nil, func(*gin.Context) {}} {
		g := newGuard(t, stet.Options{}, stethttp.Options{})
		e := engine()
		e.HandleMethodNotAllowed = true
		e.Use(stetgin.Middleware(g.Middleware))
		if after != nil {
			e.Use(after)
		}
		e.POST("/payments", paid)
		e.GET("/receipts", paid)
		url := serve(t, e)
		for range 2 {
			send(t, "POST", url+"/typo", "x").want(t, 404, "404 page not found", false)
			r := send(t, "POST", url+"/receipts", "x")
			r.want(t, 405, "405 method not allowed", false)
			if r.header.Get("Allow") != "GET" || r.header.Get("Content-Type") != "text/plain" {
				t.Errorf("the header is %v", r.header)
			}
		}
		send(t, "POST", url+"/typo", "x", "Idempotency-Key", "-").want(t, 404, "404 page not found", false)
		send(t, "POST", url+"/payments", "x").want(t, 201, "paid", false) // the key is free
		if g.log.String() != "" {
			t.Error(g.log)
		}
	}
}

// TestHandlerForUnknownRoutesIsProtected: it may be a proxy.
func TestHandlerForUnknownRoutesIsProtected(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	e.Use(stetgin.Middleware(g.Middleware))
	e.HandleMethodNotAllowed = true
	runs := 0
	e.GET("/receipts", paid)
	e.NoRoute(func(c *gin.Context) { runs++; paid(c) })
	e.NoMethod(func(c *gin.Context) { runs++; paid(c) })
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/elsewhere", "x").want(t, 201, "paid", i > 0)
		send(t, "POST", url+"/receipts", "x", "Idempotency-Key", "other").want(t, 201, "paid", i > 0)
	}
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}

// TestHandlerForUnknownRoutesMayLeaveTheAnswerToGin, which is then the outcome.
func TestHandlerForUnknownRoutesMayLeaveTheAnswerToGin(t *testing.T) {
	for _, h := range []gin.HandlerFunc{func(*gin.Context) {}, func(c *gin.Context) { c.Status(http.StatusNotFound) }} {
		g := newGuard(t, stet.Options{}, stethttp.Options{})
		e := engine()
		e.Use(stetgin.Middleware(g.Middleware))
		e.NoRoute(h)
		url := serve(t, e)
		for i := range 2 {
			send(t, "POST", url+"/elsewhere", "x").want(t, 404, "404 page not found", i > 0)
		}
	}
}

// TestProtectedTwiceIsMisconfigured at each request, and nothing runs.
func TestProtectedTwiceIsMisconfigured(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	_, tx := books(t, stethttp.Options{ErrorLog: g.Log()})
	e := engine()
	runs := 0
	run := func(c *gin.Context) { runs++; paid(c) }
	once := e.Group("/", stetgin.Middleware(g.Middleware))
	once.POST("/twice", stetgin.Middleware(g.Middleware), run)
	e.POST("/tx", stetgin.Middleware(tx.Middleware), stetgin.HandleTx(tx, func(c *gin.Context, _ *sql.Tx) { run(c) }))
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

// TestHandlerThatIsCalledAgainIsCalledThroughTheChain, and finds the context as it was.
func TestHandlerThatIsCalledAgainIsCalledThroughTheChain(t *testing.T) {
	g := newGuard(t, stet.Options{Policy: stet.Policy{Outside: true}}, stethttp.Options{Tries: 3})
	e := engine()
	var inside, runs atomic.Int64
	e.Use(func(c *gin.Context) { c.Set("account", "a"); c.Next() }, stetgin.Middleware(g.Middleware), func(c *gin.Context) {
		inside.Add(1)
		if _, there := c.Get("half"); there || len(c.Errors) > 0 || c.GetString("account") != "a" {
			t.Errorf("keys %v, errors %v", c.Keys, c.Errors)
		}
		c.Set("half", true)
	})
	e.POST("/orders/:id", func(c *gin.Context) {
		if n := runs.Add(1); n < 3 {
			_ = c.Error(errors.New("try again"))
			c.AbortWithStatus(http.StatusInternalServerError)
			return
		}
		if c.PostForm("amount") != "10" || c.Param("id") != "42" {
			t.Errorf("form %v, parameter %q", c.Request.Form, c.Param("id"))
		}
		c.String(http.StatusConflict, "sold out")
	})
	send(t, "POST", serve(t, e)+"/orders/42", "amount=10", "Content-Type", "application/x-www-form-urlencoded").want(t, 409, "sold out", false)
	if inside.Load() != 3 || runs.Load() != 3 {
		t.Errorf("%d runs, %d of the middleware inside; want 3", runs.Load(), inside.Load())
	}
}

func TestTransactionIsCommittedWithItsResponse(t *testing.T) {
	store, m := books(t, stethttp.Options{})
	e := engine()
	inside := 0
	e.POST("/orders/:id", stetgin.HandleTx(m, func(c *gin.Context, tx *sql.Tx) {
		if _, err := tx.ExecContext(c.Request.Context(), `INSERT INTO payments VALUES (?)`, c.PostForm("amount")); err != nil {
			t.Error(err)
		}
		c.String(http.StatusOK, "order "+c.Param("id"))
	}), func(c *gin.Context) { // what is registered after it runs inside, too
		inside++
		if _, err := stethttp.Tx[*sql.Tx](c.Request.Context()).ExecContext(c.Request.Context(), `INSERT INTO payments VALUES ('fee')`); err != nil {
			t.Error(err)
		}
	})
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/orders/7", "amount=10", "Content-Type", "application/x-www-form-urlencoded").want(t, 200, "order 7", i > 0)
	}
	wantPayments(t, store, 2)
	if inside != 1 {
		t.Errorf("the handler after it ran %d times", inside)
	}
}

// TestUnprotectedRequestHasNoTransaction, so the handler that needs one is not called.
// TestAbortWithErrorRollsBack_AndItsRefusalIsStored. A 409 without an error commits.
func TestAbortWithErrorRollsBack_AndItsRefusalIsStored(t *testing.T) {
	store, m := books(t, stethttp.Options{})
	r := engine()
	r.POST("/payments", stetgin.HandleTx(m, func(c *gin.Context, tx *sql.Tx) {
		if _, err := tx.ExecContext(c.Request.Context(), `INSERT INTO payments VALUES ('10')`); err != nil {
			t.Error(err)
		}
		switch c.GetHeader("Do") {
		case "abort":
			_ = c.AbortWithError(http.StatusConflict, errors.New("taken"))
		case "refuse":
			c.AbortWithStatus(http.StatusConflict)
		default:
			_ = c.Error(errors.New("no mail was sent"))
			paid(c)
		}
	}))
	url := serve(t, r) + "/payments"
	for i := range 2 {
		send(t, "POST", url, "x", "Do", "abort").want(t, 409, "", i > 0)
	}
	wantPayments(t, store, 0)
	for i := range 2 {
		send(t, "POST", url, "x", "Do", "refuse", "Idempotency-Key", "other").want(t, 409, "", i > 0)
	}
	wantPayments(t, store, 1)
	for i := range 2 {
		send(t, "POST", url, "x", "Idempotency-Key", "third").want(t, 201, "paid", i > 0)
	}
	wantPayments(t, store, 2)
}

func TestUnprotectedRequestHasNoTransaction(t *testing.T) {
	_, m := books(t, stethttp.Options{Optional: true})
	e := engine()
	e.POST("/payments", stetgin.HandleTx(m, func(*gin.Context, *sql.Tx) { t.Error("called") }))
	send(t, "POST", serve(t, e)+"/payments", "x", "Idempotency-Key", "-").want(t, 500, "", false)
}

func TestWrongWiringPanicsAtOnce(t *testing.T) {
	for name, wire := range map[string]func(){
		"Middleware needs what stethttp.New returns":  func() { stetgin.Middleware(nil) },
		"HandleTx needs what stethttp.NewTx returns":  func() { stetgin.HandleTx(nil, func(*gin.Context, *sql.Tx) {}) },
		"HandleTx needs a handler":                    func() { _, m := books(t, stethttp.Options{}); stetgin.HandleTx(m, nil) },
		"HandleTx needs what stethttp.NewTx returns ": func() { stetgin.HandleTx(&stethttp.TxMiddleware[*sql.Tx]{}, nil) },
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
