package stetgin_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetgin"
	"github.com/stet-go/stet/stethttp"
)

// TestResponsesAreThoseOfGin, however they are written, and what a handler and the
// middleware around it see of their writer.
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
			g := newGuard(t, stet.Options{}, stethttp.Options{})
			seen := [2]chan string{make(chan string, 1), make(chan string, 2)}
			url := make([]string, 2)
			for i, m := range []gin.HandlerFunc{func(*gin.Context) {}, stetgin.Middleware(g.Middleware)} {
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
				url[i] = serve(t, e) + "/payments"
			}
			plain, first := send(t, "POST", url[0], "x"), send(t, "POST", url[1], "x")
			if plain, here := <-seen[0], <-seen[1]; plain != here {
				t.Errorf("Gin's handlers see\n%s, and here\n%s", plain, here)
			}
			again := send(t, "POST", url[1], "x")
			for _, r := range []reply{plain, first, again} {
				for _, name := range []string{"Date", "Content-Length", "Cache-Control", "Idempotent-Replayed", "Idempotency-Expires", "Last-Modified"} {
					r.header.Del(name)
				}
			}
			if plain.status != first.status || plain.body != first.body || !reflect.DeepEqual(plain.header, first.header) {
				t.Errorf("Gin answers\n%d %v %.100q, and here\n%d %v %.100q", plain.status, plain.header, plain.body, first.status, first.header, first.body)
			}
			if name == "large" {
				again.wantProblem(t, 410, "result-expired")
			} else if !reflect.DeepEqual(first, again) {
				t.Errorf("first\n%+v, again\n%+v", first, again)
			}
		})
	}
}

func TestHandlerFindsItsRequest(t *testing.T) {
	var account string
	g := newGuard(t, stet.Options{}, stethttp.Options{Scope: func(r *http.Request) (string, error) {
		c := stetgin.Context(r)
		account = c.GetString("account") + c.Param("id")
		return account, nil
	}})
	e := engine()
	e.ContextWithFallback = true
	e.Use(func(c *gin.Context) { c.Set("account", "acct_"); c.Next() }, stetgin.Middleware(g.Middleware))
	e.POST("/accounts/:id/payments", func(c *gin.Context) {
		run := stet.FromContext(c) // by ContextWithFallback
		if run == nil || run != stet.FromContext(c.Request.Context()) {
			t.Fatal("no run")
		}
		if op := run.Op(); op.Scope != "acct_7" || op.Name != "POST /accounts/:id/payments" {
			t.Errorf("the operation is %+v", op)
		}
		var order struct{ Amount int }
		if err := c.ShouldBindJSON(&order); err != nil || order.Amount != 10 {
			t.Errorf("bound %+v, %v", order, err)
		}
		if deadline, ok := c.Deadline(); !ok || time.Until(deadline) <= 0 || c.Err() != nil {
			t.Errorf("deadline %v, %v", deadline, c.Err())
		}
		c.Set("order", order.Amount)
		paid(c)
	})
	send(t, "POST", serve(t, e)+"/accounts/7/payments", `{"amount":10}`).want(t, 201, "paid", false)
	if stetgin.Context(httptest.NewRequest("GET", "/", nil)) != nil {
		t.Error("a request that is not Gin's has a context of Gin's")
	}
}

// TestWhatIsAroundGetsTheContextBack: its writer, its request, and what was set inside.
func TestWhatIsAroundGetsTheContextBack(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	e.Use(func(c *gin.Context) {
		w, r := c.Writer, c.Request
		c.Next()
		if c.Request != r || c.Request.Context().Err() != nil {
			t.Errorf("the request is another, or its context has ended: %v", c.Request.Context().Err())
		}
		if got := c.Writer.(interface{ Unwrap() http.ResponseWriter }).Unwrap(); got != http.ResponseWriter(w) {
			t.Errorf("the writer is %T over %T", c.Writer, got)
		}
		if c.Writer.Status() == 201 && c.Writer.Header().Get("Idempotent-Replayed") == "" && c.GetInt("amount") != 10 {
			t.Error("what was set inside is lost")
		}
	}, stetgin.Middleware(g.Middleware))
	e.POST("/payments", func(c *gin.Context) { c.Set("amount", 10); paid(c) })
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 201, "paid", i > 0)
	}
}

// TestUnprotectedRequestIsGinsOwn: nothing is between, not even for an upgrade.
func TestUnprotectedRequestIsGinsOwn(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{Optional: true})
	e := engine()
	var w gin.ResponseWriter
	var r *http.Request
	e.Use(func(c *gin.Context) { w, r = c.Writer, c.Request; c.Next() }, stetgin.Middleware(g.Middleware))
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
	url := serve(t, e)
	send(t, "GET", url+"/payments", "").want(t, 201, "paid", false)
	send(t, "POST", url+"/payments", "x", "Idempotency-Key", "-").want(t, 201, "paid", false)
	send(t, "GET", url+"/socket", "", "Connection", "Upgrade", "Upgrade", "x").want(t, 101, "", false)
}

// TestOptionalKeyInTheBody: a request that is passed through has its body back.
func TestOptionalKeyInTheBody(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{Optional: true, KeyPointer: "/id"})
	e := engine()
	e.POST("/payments", stetgin.Middleware(g.Middleware), func(c *gin.Context) {
		body, err := c.GetRawData()
		if err != nil {
			t.Error(err)
		}
		c.String(http.StatusOK, string(body))
	})
	url := serve(t, e) + "/payments"
	for range 2 {
		send(t, "POST", url, `{"amount":1}`, "Idempotency-Key", "-").want(t, 200, `{"amount":1}`, false)
	}
	for i := range 2 {
		send(t, "POST", url, `{"id":"1"}`, "Idempotency-Key", "-").want(t, 200, `{"id":"1"}`, i > 0)
	}
}

func TestHijackIsRefused(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	e.POST("/payments", stetgin.Middleware(g.Middleware), func(c *gin.Context) {
		if _, _, err := c.Writer.Hijack(); err == nil || !strings.Contains(err.Error(), "Options.Skip") {
			t.Errorf("hijacked: %v", err)
		}
		if _, ok := c.Writer.(http.Hijacker); !ok || c.Writer.Pusher() != nil {
			t.Error("the writer is not Gin's")
		}
		paid(c)
	})
	send(t, "POST", serve(t, e)+"/payments", "x").want(t, 201, "paid", false)
}

// TestStreamGoesOnWhenItsClientLeaves, and ends with its run.
func TestStreamGoesOnWhenItsClientLeaves(t *testing.T) {
	g := newGuard(t, stet.Options{Policy: stet.Policy{RunTimeout: 300 * time.Millisecond}}, stethttp.Options{})
	e := engine()
	left, ended := make(chan struct{}), make(chan bool, 1)
	e.POST("/payments", stetgin.Middleware(g.Middleware), func(c *gin.Context) {
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
				return false
			}
			return true
		})
	})
	srv := httptest.NewServer(e)
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/payments", strings.NewReader("x"))
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

// TestCopyMayBeUsedAfterTheResponse, as Gin says of goroutines.
func TestCopyMayBeUsedAfterTheResponse(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	answered, late := make(chan struct{}), make(chan string)
	e.POST("/orders/:id", stetgin.Middleware(g.Middleware), func(c *gin.Context) {
		c.Set("account", "a")
		cp := c.Copy()
		go func() {
			<-answered
			late <- cp.Param("id") + cp.GetString("account") + cp.FullPath() + fmt.Sprint(stet.FromContext(cp.Request.Context()) != nil)
		}()
		paid(c)
	})
	send(t, "POST", serve(t, e)+"/orders/42", "x").want(t, 201, "paid", false)
	close(answered)
	if got := <-late; got != "42a/orders/:idtrue" {
		t.Errorf("got %q", got)
	}
}

// TestReenteringTheEngineIsLoud: gin.Engine.HandleContext gives the context Gin's own
// writer again, so that what it runs writes past the middleware; that is cut off.
func TestReenteringTheEngineIsLoud(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := engine()
	runs := 0
	e.POST("/elsewhere", func(c *gin.Context) { runs++; paid(c) })
	e.POST("/payments", stetgin.Middleware(g.Middleware), func(c *gin.Context) {
		c.Request.URL.Path = "/elsewhere"
		e.HandleContext(c)
	})
	url := serve(t, e) + "/payments"
	if r := send(t, "POST", url, "x"); r.err == nil {
		t.Errorf("got %d %q, and no error", r.status, r.body)
	}
	send(t, "POST", url, "x").wantProblem(t, 504, "outcome-unknown")
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
	g.wantLog(t, "past this middleware")
}
