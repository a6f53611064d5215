package adaptertest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// Handler returns the route's handler for routers whose handlers are those of net/http.
// param finds a parameter of the route; nil stands for http.Request.PathValue. An error
// of the handler's is reported (stethttp.Returned) and answered with 500, as net/http has no error handler.
func (r Route) Handler(param func(r *http.Request, name string) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answerError(w, req, r.Handle(&httpCall{w, req, param}))
	})
}

// HandlerTx is Handler for stethttp.TxMiddleware.HandleTx.
func (r Route) HandlerTx(param func(r *http.Request, name string) string) func(http.ResponseWriter, *http.Request, *Tx) {
	return func(w http.ResponseWriter, req *http.Request, tx *Tx) {
		answerError(w, req, r.HandleTx(&httpCall{w, req, param}, tx))
	}
}

// Colon returns the path as many frameworks write it: "/orders/:id".
func (r Route) Colon() string {
	return strings.NewReplacer("{", ":", "}", "").Replace(r.Path)
}

// Serve serves h on a port of its own until the test ends, and returns its URL. What
// the server logs is dropped.
func Serve(t testing.TB, h http.Handler) (url string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = quiet()
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

func answerError(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		stethttp.Returned(r.Context(), err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// httpCall is the Call of a handler of net/http.
type httpCall struct {
	w     http.ResponseWriter
	r     *http.Request
	param func(r *http.Request, name string) string
}

func (c *httpCall) Context() context.Context { return c.r.Context() }

func (c *httpCall) Param(name string) string {
	if c.param != nil {
		return c.param(c.r, name)
	}
	return c.r.PathValue(name)
}

func (c *httpCall) Body() ([]byte, error) { return io.ReadAll(c.r.Body) }

func (c *httpCall) AddHeader(name, value string) { c.w.Header().Add(name, value) }

func (c *httpCall) Send(status int, contentType string, body []byte) error {
	c.w.Header().Set("Content-Type", contentType)
	c.w.WriteHeader(status)
	_, err := c.w.Write(body)
	return err
}

func (c *httpCall) NoContent(status int) error {
	c.w.WriteHeader(status)
	return nil
}

func (c *httpCall) Writer() io.Writer { return c.w }

func (c *httpCall) Flush() error { return http.NewResponseController(c.w).Flush() }

func (c *httpCall) Abort(status int, text string) error {
	if text == "" {
		c.w.WriteHeader(status)
		return nil
	}
	http.Error(c.w, text, status)
	return nil
}
