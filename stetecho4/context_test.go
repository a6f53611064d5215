package stetecho4_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetecho4"
	"github.com/stet-go/stet/stethttp"
)

func unrouted() (*http.Request, *httptest.ResponseRecorder) {
	r := httptest.NewRequest("POST", "/payments", strings.NewReader("x"))
	r.Header.Set("Idempotency-Key", "k")
	return r, httptest.NewRecorder()
}

// TestResponsesAreThoseOfEcho, however they are written, and what a handler and the
// middleware around it see of them.
func TestResponsesAreThoseOfEcho(t *testing.T) {
	file := filepath.Join(t.TempDir(), "receipt.txt")
	if err := os.WriteFile(file, []byte("a receipt"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]echo.HandlerFunc{
		"JSON":               func(c echo.Context) error { return c.JSON(http.StatusCreated, echo.Map{"paid": 10}) },
		"String":             func(c echo.Context) error { return c.String(http.StatusOK, "paid") },
		"NoContent":          func(c echo.Context) error { return c.NoContent(http.StatusNoContent) },
		"Redirect":           func(c echo.Context) error { return c.Redirect(http.StatusSeeOther, "/elsewhere") },
		"Attachment":         func(c echo.Context) error { return c.Inline(file, "a.txt") },
		"Stream":             func(c echo.Context) error { return c.Stream(200, "text/x", strings.NewReader("abc")) },
		"XML":                func(c echo.Context) error { return c.XML(200, "a") },
		"header":             func(c echo.Context) error { c.Response().Header().Add("X-A", "b"); return c.HTML(200, "<a>") },
		"HTTPError":          func(echo.Context) error { return echo.NewHTTPError(http.StatusConflict, "sold out") },
		"another error":      func(echo.Context) error { return errBank },
		"wrapped error":      func(echo.Context) error { return fmt.Errorf("charge: %w", echo.ErrUnauthorized) },
		"error, then header": func(c echo.Context) error { c.Response().Header().Set("X-A", "b"); return echo.ErrConflict },
		"two bodies":         func(c echo.Context) error { _ = c.String(200, "a"); return c.String(201, "b") },
		"answer and error":   func(c echo.Context) error { _ = c.String(200, "a"); return errBank },
		"not serialized":     func(c echo.Context) error { return c.JSON(http.StatusOK, make(chan int)) },
		"http.Handler":       echo.WrapHandler(http.RedirectHandler("/there", http.StatusFound)),
		"flushed": func(c echo.Context) error {
			_ = c.String(200, "a")
			c.Response().Flush()
			_, err := c.Response().Write([]byte("b"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(t, stet.Options{}, stethttp.Options{})
			seen := [2]chan string{make(chan string, 2), make(chan string, 2)}
			url := make([]string, 2)
			for i, m := range []echo.MiddlewareFunc{around(nil, nil), stetecho4.Middleware(g.Middleware)} {
				e := instance()
				e.Use(around(nil, func(c echo.Context, err error) error {
					if err != nil {
						c.Error(err) // as Echo's own logger does
					}
					seen[i] <- fmt.Sprint(c.Get("inside"), " outside ", c.Response().Status, c.Response().Size, c.Response().Committed, err)
					return err
				}), m)
				e.POST("/payments", func(c echo.Context) error {
					res := c.Response()
					before := fmt.Sprint(res.Status, res.Size, res.Committed)
					err := h(c)
					c.Set("inside", before+fmt.Sprint(" inside ", res.Size, res.Committed))
					return err
				})
				url[i] = serve(t, e) + "/payments"
			}
			plain, first := send(t, "POST", url[0], "x"), send(t, "POST", url[1], "x")
			if plain, here := <-seen[0], <-seen[1]; plain != here {
				t.Errorf("Echo's handlers see\n%s, and here\n%s", plain, here)
			}
			again := send(t, "POST", url[1], "x")
			for _, r := range []reply{plain, first, again} {
				r.strip()
			}
			if plain.status != first.status || plain.body != first.body || !reflect.DeepEqual(plain.header, first.header) {
				t.Errorf("Echo answers\n%d %v %.100q, and here\n%d %v %.100q", plain.status, plain.header, plain.body, first.status, first.header, first.body)
			}
			if plain.status == http.StatusUnauthorized { // which says that nothing was executed
				again.want(t, first.status, first.body, false)
			} else if !reflect.DeepEqual(first, again) {
				t.Errorf("first\n%+v, again\n%+v", first, again)
			}
		})
	}
}

func TestHandlerFindsItsRequest(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{Scope: func(r *http.Request) (string, error) {
		c := stetecho4.Context(r)
		return c.Get("account").(string) + c.Param("id"), nil
	}})
	e := instance()
	e.Use(around(func(c echo.Context) { c.Set("account", "acct_") }, nil), stetecho4.Middleware(g.Middleware))
	e.POST("/accounts/:id/payments", func(c echo.Context) error {
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
		return paid(c)
	})
	url := serve(t, e) + "/accounts/7/payments"
	for i := range 2 {
		send(t, "POST", url, `{"amount":10}`, "Content-Type", "application/json").want(t, 201, "paid", i > 0)
	}
	if stetecho4.Context(httptest.NewRequest("GET", "/", nil)) != nil {
		t.Error("a request that is not Echo's has a context of Echo's")
	}
}

// TestWhatIsAroundGetsTheContextBack: its request, and what was set inside.
func TestWhatIsAroundGetsTheContextBack(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			w, r := c.Response(), c.Request()
			err := next(c)
			if c.Request() != r || r.Context().Err() != nil {
				t.Error("the request is another")
			}
			if w.Header().Get("Idempotent-Replayed") == "" && c.Get("amount") != 10 {
				t.Error("what was set inside is lost")
			}
			return err
		}
	}, stetecho4.Middleware(g.Middleware))
	e.POST("/payments", func(c echo.Context) error { c.Set("amount", 10); return paid(c) })
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 201, "paid", i > 0)
	}
}

// TestHooksAreCalledWhenTheResponseIsSent: those of what is around for replays, too, and
// also if the handler streams.
func TestHooksAreCalledWhenTheResponseIsSent(t *testing.T) {
	for _, stream := range []bool{false, true} {
		g := newGuard(t, stet.Options{}, stethttp.Options{})
		e := instance()
		after := make(chan int64, 10)
		e.Use(around(func(c echo.Context) {
			c.Response().Before(func() { c.Response().Header().Add("X-Around", "1") })
			c.Response().After(func() { after <- c.Response().Size })
		}, nil), stetecho4.Middleware(g.Middleware))
		e.POST("/payments", func(c echo.Context) error {
			c.Response().Before(func() { c.Response().Header().Add("X-Inside", "1") })
			if err := paid(c); err != nil || !stream {
				return err
			}
			c.Response().Flush()
			return nil
		})
		url := serve(t, e) + "/payments"
		for i := range 2 {
			r := send(t, "POST", url, "x")
			r.want(t, 201, "paid", i > 0)
			if len(r.header["X-Around"]) != 1 || len(r.header["X-Inside"]) != 1 {
				t.Errorf("stream %v, replayed %v: the header is %v", stream, i > 0, r.header)
			}
			if size := <-after; size != 4 && !stream {
				t.Errorf("After sees %d bytes", size)
			}
		}
	}
}

// TestInformationalStatusIsNotThatOfTheResponse.
func TestInformationalStatusIsNotThatOfTheResponse(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.POST("/payments", func(c echo.Context) error {
		c.Response().Header().Set("Link", "</a>; rel=preload")
		c.Response().Writer.WriteHeader(http.StatusEarlyHints)
		return paid(c)
	}, stetecho4.Middleware(g.Middleware))
	req, err := http.NewRequest("POST", serve(t, e)+"/payments", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	hints := 0
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { hints += code; return nil }}
	res, err := http.DefaultClient.Do(req.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 201 || string(body) != "paid" || hints != 103 {
		t.Errorf("got %d %q, hints %d", res.StatusCode, body, hints)
	}
}

// TestUnprotectedRequestIsEchosOwn: nothing is between, not even for an upgrade.
func TestUnprotectedRequestIsEchosOwn(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{Optional: true})
	e := instance()
	var w *echo.Response
	var r *http.Request
	e.Use(around(func(c echo.Context) { w, r = c.Response(), c.Request() }, nil), stetecho4.Middleware(g.Middleware))
	h := func(c echo.Context) error {
		if c.Response() != w || c.Request() != r {
			t.Error("the response or the request is another")
		}
		return echo.ErrPaymentRequired
	}
	e.GET("/payments", h)
	e.POST("/payments", h)
	e.GET("/socket", func(c echo.Context) error {
		conn, rw, err := c.Response().Hijack()
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		return rw.Flush()
	})
	url := serve(t, e)
	send(t, "GET", url+"/payments", "").want(t, 402, "{\"message\":\"Payment Required\"}\n", false)
	send(t, "POST", url+"/payments", "x", "Idempotency-Key", "-").want(t, 402, "{\"message\":\"Payment Required\"}\n", false)
	send(t, "GET", url+"/socket", "", "Connection", "Upgrade", "Upgrade", "x").want(t, 101, "", false)
}

// TestOptionalKeyInTheBody: a request that is passed through has its body back.
func TestOptionalKeyInTheBody(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{Optional: true, KeyPointer: "/id"})
	e := instance()
	e.POST("/payments", func(c echo.Context) error {
		body, err := io.ReadAll(c.Request().Body)
		if err != nil {
			return err
		}
		return c.String(http.StatusOK, string(body))
	}, stetecho4.Middleware(g.Middleware))
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
	e := instance()
	e.POST("/payments", func(c echo.Context) error {
		if _, _, err := c.Response().Hijack(); err == nil || !strings.Contains(err.Error(), "Options.Skip") {
			t.Errorf("hijacked: %v", err)
		}
		return paid(c)
	}, stetecho4.Middleware(g.Middleware))
	send(t, "POST", serve(t, e)+"/payments", "x").want(t, 201, "paid", false)
}

// TestCompressionAroundIsTransparent: replays and refusals are compressed like all else.
func TestCompressionAroundIsTransparent(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.Use(middleware.Gzip(), stetecho4.Middleware(g.Middleware))
	long := strings.Repeat("paid ", 1000)
	e.POST("/payments", func(c echo.Context) error { return c.String(http.StatusCreated, long) })
	e.POST("/refused", func(echo.Context) error { return echo.NewHTTPError(http.StatusConflict, long) })
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/payments", "x").want(t, 201, long, i > 0)
		send(t, "POST", url+"/refused", "x", "Idempotency-Key", "other").want(t, 409, "{\"message\":\""+long+"\"}\n", i > 0)
	}
	send(t, "POST", url+"/payments", "y").wantProblem(t, 422, "mismatch")
}
