package stetgin_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgin"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// protected is an engine with POST /payments behind the middleware, and outer middleware.
func protected(b *adaptertest.Bench, h gin.HandlerFunc, around ...gin.HandlerFunc) *gin.Engine {
	e := engine()
	e.Use(around...)
	e.POST("/payments", stetgin.Middleware(b.Middleware), h)
	return e
}

func post(t *testing.T, url, body string, header ...string) adaptertest.Reply {
	t.Helper()
	return adaptertest.Send(t, "POST", url, body, header...)
}

// TestResponsesAreThoseOfGin compares responses with those of Gin alone, and what handlers
// and the middleware around them find in their writer.
func TestResponsesAreThoseOfGin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "receipt.txt")
	if err := os.WriteFile(file, []byte("a receipt"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]gin.HandlerFunc{
		"JSON":              func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"paid": 10}) },
		"String":            func(c *gin.Context) { c.String(http.StatusOK, "paid %d", 10) },
		"Status":            func(c *gin.Context) { c.Status(http.StatusNoContent) },
		"status 200":        func(c *gin.Context) { c.Status(http.StatusOK) },
		"Redirect":          func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/elsewhere") },
		"File":              func(c *gin.Context) { c.File(file) },
		"Abort":             func(c *gin.Context) { c.AbortWithStatus(http.StatusConflict) },
		"AbortJSON":         func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusConflict, gin.H{"a": 1}) },
		"header and cookie": func(c *gin.Context) { c.Header("X-A", "b"); c.Header("Content-Language", "de"); c.String(200, "a") },
		"status, then body": func(c *gin.Context) { c.Status(http.StatusAccepted); _, _ = io.WriteString(c.Writer, "later") },
		"status twice":      func(c *gin.Context) { c.Status(http.StatusAccepted); c.Status(http.StatusCreated) },
		"status too late":   func(c *gin.Context) { c.String(http.StatusAccepted, "a"); c.Status(http.StatusCreated) },
		"two bodies":        func(c *gin.Context) { c.String(http.StatusAccepted, "a"); c.String(http.StatusCreated, "b") },
		"content with 204":  func(c *gin.Context) { c.String(http.StatusNoContent, "a") },
		"http.Error":        gin.WrapF(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusConflict) }),
		"http.Handler":      gin.WrapH(http.RedirectHandler("/there", http.StatusFound)),
		"Negotiate":         func(c *gin.Context) { c.Negotiate(200, gin.Negotiate{Offered: []string{gin.MIMEJSON}, Data: 1}) },
		"DataFromReader":    func(c *gin.Context) { c.DataFromReader(200, 3, "text/x", strings.NewReader("abc"), nil) },
		"not rendered":      func(c *gin.Context) { c.JSON(http.StatusOK, make(chan int)) },
		"large":             func(c *gin.Context) { c.Data(200, "text/plain", make([]byte, 3<<20)) },
		"Stream": func(c *gin.Context) {
			n := 0
			c.Stream(func(io.Writer) bool { n++; c.SSEvent("message", n); return n < 3 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
			seen := [2]chan string{make(chan string, 1), make(chan string, 2)}
			url := make([]string, 2)
			for i, m := range []gin.HandlerFunc{func(*gin.Context) {}, stetgin.Middleware(b.Middleware)} {
				e := engine()
				e.Use(func(c *gin.Context) {
					c.Next()
					seen[i] <- fmt.Sprint(c.GetString("inside"), " outside ", c.Writer.Status(), c.IsAborted(), len(c.Errors))
				})
				e.POST("/payments", m, func(c *gin.Context) {
					before := fmt.Sprint(c.Writer.Status(), c.Writer.Size(), c.Writer.Written())
					h(c)
					c.Set("inside", before+fmt.Sprint(" inside ", c.Writer.Status(), c.Writer.Size(), c.Writer.Written()))
				})
				url[i] = adaptertest.Serve(t, e) + "/payments"
			}
			plain, first := post(t, url[0], "x"), post(t, url[1], "x")
			if plain, here := <-seen[0], <-seen[1]; plain != here {
				t.Errorf("Gin's handlers see\n%s, and here\n%s", plain, here)
			}
			plain.Same(first)
			if again := post(t, url[1], "x"); name == "large" {
				again.WantProblem(410, "result-expired")
			} else {
				first.Same(again)
			}
		})
	}
}

// TestContext: Options.Scope and the handler find values of outer middleware, which finds
// values of the handler.
func TestContext(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{Scope: func(r *http.Request) (string, error) {
		c := stetgin.Context(r)
		return c.GetString("account") + c.Param("id"), nil
	}})
	e := engine()
	e.ContextWithFallback = true
	e.Use(func(c *gin.Context) {
		c.Set("account", "acct_")
		w, r := c.Writer, c.Request
		c.Next()
		if c.Request != r || c.Writer.(interface{ Unwrap() http.ResponseWriter }).Unwrap() != http.ResponseWriter(w) {
			t.Errorf("around, the request or the writer is another: %T", c.Writer)
		}
		if c.Writer.Header().Get("Idempotent-Replayed") == "" && c.GetInt("order") != 10 {
			t.Error("a value that was set inside is lost")
		}
	}, stetgin.Middleware(b.Middleware))
	e.POST("/accounts/:id/payments", func(c *gin.Context) {
		run := stet.FromContext(c) // by ContextWithFallback
		if op := run.Op(); op.Scope != "acct_7" || op.Name != "POST /accounts/:id/payments" {
			t.Errorf("the operation is %+v", op)
		}
		var order struct{ Amount int }
		if err := c.ShouldBindJSON(&order); err != nil || order.Amount != 10 {
			t.Errorf("bound %+v, %v", order, err)
		}
		if deadline, ok := c.Deadline(); !ok || time.Until(deadline) <= 0 || c.Err() != nil || c.Writer.Pusher() != nil {
			t.Errorf("deadline %v, %v, pusher %v", deadline, c.Err(), c.Writer.Pusher())
		}
		c.Set("order", order.Amount)
		paid(c)
	})
	url := adaptertest.Serve(t, e) + "/accounts/7/payments"
	for i := range 2 {
		post(t, url, `{"amount":10}`).Want(201, "paid", i > 0)
	}
	if stetgin.Context(httptest.NewRequest("GET", "/", nil)) != nil {
		t.Error("a request that is not Gin's has a context of Gin's")
	}
}

// TestUnprotectedRequest_HasGinsOwnWriter: also an upgrade is possible.
func TestUnprotectedRequest_HasGinsOwnWriter(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{Optional: true})
	var w gin.ResponseWriter
	var r *http.Request
	e := engine()
	e.Use(func(c *gin.Context) { w, r = c.Writer, c.Request; c.Next() }, stetgin.Middleware(b.Middleware))
	h := func(c *gin.Context) {
		if c.Writer != w || c.Request != r {
			t.Error("the writer or the request is another")
		}
		paid(c)
	}
	e.GET("/payments", h)
	e.POST("/payments", h)
	e.GET("/socket", func(c *gin.Context) {
		conn, rw, err := c.Writer.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = rw.Flush()
	})
	url := adaptertest.Serve(t, e)
	adaptertest.Send(t, "GET", url+"/payments", "").Want(201, "paid", false)
	post(t, url+"/payments", "x", "Idempotency-Key", "-").Want(201, "paid", false)
	adaptertest.Send(t, "GET", url+"/socket", "", "Connection", "Upgrade", "Upgrade", "x").Want(101, "", false)
}

// TestStream_ClientLeaves: the stream does not end before its run.
func TestStream_ClientLeaves(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{Policy: stet.Policy{RunTimeout: 300 * time.Millisecond}}, stethttp.Options{})
	left, ended := make(chan struct{}), make(chan bool, 1)
	url := adaptertest.Serve(t, protected(b, func(c *gin.Context) {
		n := 0
		ended <- c.Stream(func(w io.Writer) bool {
			n++
			_, _ = fmt.Fprintf(w, "%d\n", n)
			if n == 2 {
				<-left
			}
			if n == 3 {
				<-c.Request.Context().Done()
				<-c.Writer.CloseNotify()
			}
			return n < 3
		})
	}))
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/payments", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || line != "1\n" {
		t.Errorf("streamed %q, %v", line, err)
	}
	_ = res.Body.Close()
	close(left)
	if gone := <-ended; gone {
		t.Error("the stream has ended when its client left")
	}
}

// TestCopy_UsedAfterTheResponse: Gin permits that for goroutines.
func TestCopy_UsedAfterTheResponse(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	answered, late := make(chan struct{}), make(chan string)
	post(t, adaptertest.Serve(t, protected(b, func(c *gin.Context) {
		c.Set("account", "a")
		cp := c.Copy()
		go func() {
			<-answered
			late <- cp.GetString("account") + cp.FullPath() + fmt.Sprint(stet.FromContext(cp.Request.Context()) != nil)
		}()
		paid(c)
	}))+"/payments", "x").Want(201, "paid", false)
	close(answered)
	if got := <-late; got != "a/paymentstrue" {
		t.Errorf("got %q", got)
	}
}

// TestHandleContext_IsLoud: it gives the context Gin's own writer again, which bypasses the
// middleware. The response is cut off.
func TestHandleContext_IsLoud(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	runs := 0
	var e *gin.Engine
	e = protected(b, func(c *gin.Context) { c.Request.URL.Path = "/elsewhere"; e.HandleContext(c) })
	e.POST("/elsewhere", func(c *gin.Context) { runs++; paid(c) })
	url := adaptertest.Serve(t, e) + "/payments"
	if r := post(t, url, "x"); r.Err == nil {
		t.Errorf("got %v, and no error", r)
	}
	post(t, url, "x").WantProblem(504, "outcome-unknown")
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
	b.WantLog("around this middleware", 1)
}

// TestErrorsAnsweredAround_AreLoud: a middleware that answers gin.Context.Error, and is
// registered before stetgin's, has not answered when the outcome is stored.
func TestErrorsAnsweredAround_AreLoud(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	url := adaptertest.Serve(t, protected(b, func(c *gin.Context) { _ = c.Error(errBank) }, answerErrors)) + "/payments"
	post(t, url, "x").WantProblem(500, "response-missing")
	post(t, url, "x").WantProblem(504, "outcome-unknown")
	b.WantLog("register the middleware that responds to errors after stetgin's", 1)
}

// holding is a writer around that holds content back.
type holding struct {
	gin.ResponseWriter
	held []byte
}

func (w *holding) Write(p []byte) (int, error) { w.held = append(w.held, p...); return len(p), nil }

// TestWriterThatHoldsContentBack_MayAddFields, and no content.
func TestWriterThatHoldsContentBack_MayAddFields(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	url := adaptertest.Serve(t, protected(b, paid, func(c *gin.Context) {
		w := &holding{ResponseWriter: c.Writer}
		c.Writer = w
		c.Next()
		_, _ = c.Writer.Write([]byte("more"))
		w.Header().Set("X-Length", strconv.Itoa(len(w.held)))
		_, _ = w.ResponseWriter.Write(w.held)
	})) + "/payments"
	for i := range 2 {
		r := post(t, url, "x")
		if r.Want(201, "paid", i > 0); r.Header.Get("X-Length") != "4" {
			t.Errorf("the header is %v", r.Header)
		}
	}
}

// TestHandlerForUnknownRoutes: NoRoute and NoMethod are protected. Their outcome may be
// Gin's own text.
func TestHandlerForUnknownRoutes(t *testing.T) {
	for _, c := range []struct {
		h      gin.HandlerFunc
		status int
		body   string
	}{
		{paid, 201, "paid"},
		{func(*gin.Context) {}, 404, "404 page not found"},
		{func(c *gin.Context) { c.Status(http.StatusNotFound) }, 404, "404 page not found"},
	} {
		b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
		e := engine()
		e.HandleMethodNotAllowed = true
		e.Use(stetgin.Middleware(b.Middleware))
		runs := 0
		e.GET("/receipts", paid)
		e.NoRoute(func(gc *gin.Context) { runs++; c.h(gc) })
		e.NoMethod(func(c *gin.Context) { runs++; paid(c) })
		url := adaptertest.Serve(t, e)
		for i := range 2 {
			post(t, url+"/elsewhere", "x").Want(c.status, c.body, i > 0)
			post(t, url+"/receipts", "x", "Idempotency-Key", "other").Want(201, "paid", i > 0)
		}
		if runs != 2 {
			t.Errorf("%d runs", runs)
		}
	}
}

// TestSecondCall_FindsTheContextOfTheFirst: keys, errors and forms of the first are undone.
func TestSecondCall_FindsTheContextOfTheFirst(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{Policy: stet.Policy{Outside: true}}, stethttp.Options{Advanced: stethttp.Advanced{Tries: 2}})
	runs := 0
	url := adaptertest.Serve(t, protected(b, func(c *gin.Context) {
		if _, there := c.Get("half"); there || len(c.Errors) > 0 || c.GetString("account") != "a" || c.PostForm("amount") != "10" {
			t.Errorf("keys %v, errors %v, form %v", c.Keys, c.Errors, c.Request.Form)
		}
		c.Set("half", true)
		if runs++; runs == 1 {
			_ = c.AbortWithError(http.StatusInternalServerError, errBank)
			return
		}
		c.String(http.StatusConflict, "sold out")
	}, func(c *gin.Context) { c.Set("account", "a") }))
	post(t, url+"/payments", "amount=10", "Content-Type", "application/x-www-form-urlencoded").Want(409, "sold out", false)
}

// TestHandleTx: an error with a 4xx rolls back, and the refusal is stored; an error with a 201
// commits. Handlers that are registered after HandleTx run in the transaction.
func TestHandleTx(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	e := engine()
	e.POST("/payments", stetgin.HandleTx(b.Tx, func(c *gin.Context, tx *adaptertest.Tx) {
		tx.Insert("10")
		if c.GetHeader("Do") == "abort" {
			_ = c.AbortWithError(http.StatusConflict, errors.New("taken"))
			return
		}
		_ = c.Error(errors.New("no mail was sent"))
		paid(c)
	}), func(c *gin.Context) { stethttp.Tx[*adaptertest.Tx](c.Request.Context()).Insert("fee") })
	url := adaptertest.Serve(t, e) + "/payments"
	for i := range 2 {
		post(t, url, "x", "Do", "abort").Want(409, "", i > 0)
	}
	b.WantRows(0)
	for i := range 2 {
		post(t, url, "x", "Idempotency-Key", "other").Want(201, "paid", i > 0)
	}
	b.WantRows(2)
}

func TestWrongWiringPanics(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	h := func(*gin.Context, *adaptertest.Tx) {}
	adaptertest.WantPanic(t, "Middleware needs the result of stethttp.New", func() { stetgin.Middleware(nil) })
	adaptertest.WantPanic(t, "HandleTx needs the result of stethttp.NewTx", func() { stetgin.HandleTx(nil, h) })
	adaptertest.WantPanic(t, "HandleTx needs the result of stethttp.NewTx", func() { stetgin.HandleTx(&stethttp.TxMiddleware[*adaptertest.Tx]{}, h) })
	adaptertest.WantPanic(t, "HandleTx needs a handler", func() { stetgin.HandleTx(b.Tx, nil) })
}
