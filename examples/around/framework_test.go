package around

import (
	"database/sql"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	adapter "github.com/gwatts/gin-adapter"
	"github.com/labstack/echo/v4"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

// books is a database with payments, in which requests are transactions.
type books struct {
	t     *testing.T
	store *sqlite.Store
	m     *stethttp.Middleware
}

func newBooks(t *testing.T) *books {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "books.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.DB().ExecContext(t.Context(), `CREATE TABLE payments (amount TEXT)`); err != nil {
		t.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	te, err := stet.WithTx(engine, store)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatal(err)
	}
	return &books{t, store, m.Middleware}
}

func (b *books) pay(r *http.Request) {
	b.t.Helper()
	if _, err := stethttp.Tx[*sql.Tx](r.Context()).ExecContext(r.Context(), `INSERT INTO payments VALUES ('10')`); err != nil {
		b.t.Error(err)
	}
}

func (b *books) want(n int) {
	b.t.Helper()
	var got int
	if err := b.store.DB().QueryRowContext(b.t.Context(), `SELECT count(*) FROM payments`).Scan(&got); err != nil || got != n {
		b.t.Errorf("%d payments, want %d (%v)", got, n, err)
	}
}

func TestEchoErrorThatIsAnsweredOutsideIsNoOutcome(t *testing.T) {
	m, log := protected(t, stethttp.Options{})
	var runs atomic.Int64
	e := echo.New()
	e.POST("/payments", func(echo.Context) error {
		runs.Add(1)
		return errors.New("the bank is down")
	}, echo.WrapMiddleware(m.Handler))
	srv := httptest.NewServer(e)
	defer srv.Close()
	if r := post(t, srv.URL, "k", "x"); r.status != 500 || !r.problem("response-missing") {
		t.Errorf("got %d %q %v; want r.status == 500, r.problem(\"response-missing\")", r.status, r.body, r.err)
	}
	if r := post(t, srv.URL, "k", "x"); r.status != 504 || !r.problem("outcome-unknown") {
		t.Errorf("got %d %q %v; want r.status == 504, r.problem(\"outcome-unknown\")", r.status, r.body, r.err)
	}
	if runs.Load() != 1 || !strings.Contains(log.String(), "without having begun a response") {
		t.Errorf("%d runs; %s", runs.Load(), log)
	}
}

func TestEchoErrorThatIsAnsweredOutsideRollsBack(t *testing.T) {
	b := newBooks(t)
	e := echo.New()
	e.POST("/payments", func(c echo.Context) error {
		b.pay(c.Request())
		return echo.NewHTTPError(http.StatusBadGateway, "the bank is down")
	}, echo.WrapMiddleware(b.m.Handler))
	srv := httptest.NewServer(e)
	defer srv.Close()
	for range 2 {
		if r := post(t, srv.URL, "k", "x"); r.status != 500 || !r.problem("response-missing") {
			t.Errorf("got %d %q %v; want r.status == 500, r.problem(\"response-missing\")", r.status, r.body, r.err)
		}
	}
	b.want(0)
}

// Fiber calls the handler after the middleware has returned, whatever that says, and its
// response takes the place of the middleware's: so it is refused before it is called.
func TestFiberMiddlewareIsRefused(t *testing.T) {
	m, log := protected(t, stethttp.Options{})
	var runs atomic.Int64
	app := fiber.New()
	app.Post("/payments", adaptor.HTTPMiddleware(m.Handler), func(c fiber.Ctx) error {
		runs.Add(1)
		return c.Status(http.StatusCreated).SendString("paid")
	})
	url := serveFiber(t, app)
	for range 2 {
		if r := post(t, url, "k", "x"); r.status != 500 || !r.problem("misconfigured") {
			t.Errorf("%d %q %v", r.status, r.body, r.err)
		}
	}
	if runs.Load() != 0 || !strings.Contains(log.String(), "stetfiber.Middleware") {
		t.Errorf("%d runs; %s", runs.Load(), log)
	}
}

// The other adaptors of that file are right.
func TestFiberHandlerBehindNetHTTPIsProtected(t *testing.T) {
	m, _ := protected(t, stethttp.Options{})
	srv := httptest.NewServer(m.Handler(adaptor.FiberHandler(func(c fiber.Ctx) error { return c.Status(http.StatusCreated).SendString("paid") })))
	defer srv.Close()
	for i := range 2 {
		if r := post(t, srv.URL, "k", "x"); r.status != 201 || r.body != "paid" || r.replayed() != (i > 0) {
			t.Errorf("%d %q %v", r.status, r.body, r.err)
		}
	}
}

func TestFiberHandlerIsProtected(t *testing.T) {
	m, _ := protected(t, stethttp.Options{})
	var runs atomic.Int64
	app := fiber.New()
	app.Post("/payments", adaptor.HTTPHandler(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
	}))))
	url := serveFiber(t, app)
	for i := range 2 {
		if r := post(t, url, "k", "x"); r.status != 201 || r.body != "x" || r.replayed() != (i > 0) {
			t.Errorf("got %d %q %v %v; want r.status == 201, r.body == \"x\", r.replayed() == (i > 0)", r.status, r.body, r.header, r.err)
		}
	}
	if r := post(t, url, "k", "y"); r.status != 422 {
		t.Errorf("got %d %q; want r.status == 422", r.status, r.body)
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// serveFiber serves an app and returns its URL.
func serveFiber(t testing.TB, app *fiber.App) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return "http://" + l.Addr().String()
}

// The adapter gives some of the framework's calls its own writer, others the
// middleware's: an abort says one status here and another there.
func TestGinAbortPastTheMiddlewareIsCut(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for _, status := range []int{http.StatusPaymentRequired, http.StatusServiceUnavailable} {
		b := newBooks(t)
		r := gin.New()
		r.Use(gin.RecoveryWithWriter(io.Discard)) // swallows the panic that cuts the connection
		r.POST("/payments", adapter.Wrap(b.m.Handler), func(c *gin.Context) {
			b.pay(c.Request)
			c.AbortWithStatus(status)
		})
		srv := httptest.NewServer(r)
		if r := post(t, srv.URL, "k", "x"); r.err == nil {
			t.Errorf("abort with %d: the client got %d %q", status, r.status, r.body)
		}
		b.want(0)
		srv.Close()
	}
}

func TestGinAdapterOfWholeResponsesWorks(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	b := newBooks(t)
	r := gin.New()
	r.POST("/payments", adapter.Wrap(b.m.Handler), func(c *gin.Context) {
		b.pay(c.Request)
		c.JSON(http.StatusCreated, gin.H{"paid": true})
	})
	srv := httptest.NewServer(r)
	defer srv.Close()
	for i := range 2 {
		if r := post(t, srv.URL, "k", "x"); r.status != 201 || r.body != `{"paid":true}` || r.replayed() != (i > 0) {
			t.Errorf("%d %q %v %v", r.status, r.body, r.header, r.err)
		}
	}
	b.want(1)
}
