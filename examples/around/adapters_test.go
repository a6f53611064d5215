package around

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gorilla/mux"
	"github.com/labstack/echo/v4"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// router makes the adapter of a router whose handlers are those of net/http.
func router(param func(r *http.Request, name string) string, serve func(protect func(http.Handler) http.Handler, routes []adaptertest.Route, handler func(adaptertest.Route) http.Handler) http.Handler) adaptertest.Adapter {
	return adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			return adaptertest.Serve(t, serve(m.Handler, routes, func(r adaptertest.Route) http.Handler { return r.Handler(param) }))
		},
		// Behind the router's own middleware a handler finds its transaction by stethttp.Tx.
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			return adaptertest.Serve(t, serve(m.Handler, routes, func(r adaptertest.Route) http.Handler {
				next := r.HandlerTx(param)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next(w, r, stethttp.Tx[*adaptertest.Tx](r.Context())) })
			}))
		},
	}
}

func TestChiNeedsNoAdapter(t *testing.T) {
	adaptertest.Run(t, router(chi.URLParam, func(protect func(http.Handler) http.Handler, routes []adaptertest.Route, handler func(adaptertest.Route) http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(protect)
		for _, route := range routes {
			r.Method(route.Method, route.Path, handler(route))
		}
		return r
	}))
}

func TestGorillaNeedsNoAdapter(t *testing.T) {
	param := func(r *http.Request, name string) string { return mux.Vars(r)[name] }
	adaptertest.Run(t, router(param, func(protect func(http.Handler) http.Handler, routes []adaptertest.Route, handler func(adaptertest.Route) http.Handler) http.Handler {
		r := mux.NewRouter()
		r.Use(protect)
		for _, route := range routes {
			r.Handle(route.Path, handler(route)).Methods(route.Method)
		}
		return r
	}))
}

func TestHumaNeedsNoAdapter(t *testing.T) {
	serve := func(protect func(http.Handler) http.Handler, routes []adaptertest.Route, handle func(adaptertest.Route, *humaCall) error) http.Handler {
		mux := http.NewServeMux()
		api := humago.New(mux, huma.DefaultConfig("Orders", "1"))
		for _, route := range routes {
			op := huma.Operation{Method: route.Method, Path: route.Path}
			answer := func(ctx context.Context, in *humaInput) (*huma.StreamResponse, error) {
				return (&humaCall{ctx: ctx, in: in, header: http.Header{}}).answer(func(c *humaCall) error { return handle(route, c) })
			}
			if route.Method == http.MethodHead { // a RawBody is required of every request
				huma.Register(api, op, func(ctx context.Context, in *humaBare) (*huma.StreamResponse, error) {
					return answer(ctx, &humaInput{ID: in.ID})
				})
				continue
			}
			huma.Register(api, op, answer)
		}
		return protect(mux)
	}
	adaptertest.Run(t, adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			return adaptertest.Serve(t, serve(m.Handler, routes, func(r adaptertest.Route, c *humaCall) error {
				err := r.Handle(c)
				stethttp.Returned(c.ctx, err)
				return err
			}))
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			return adaptertest.Serve(t, serve(m.Handler, routes, func(r adaptertest.Route, c *humaCall) error {
				err := r.HandleTx(c, stethttp.Tx[*adaptertest.Tx](c.ctx))
				stethttp.Returned(c.ctx, err)
				return err
			}))
		},
	})
}

// humaInput is what an operation takes.
type humaInput struct {
	ID      string `path:"id"`
	RawBody []byte
}

type humaBare struct {
	ID string `path:"id"`
}

// humaCall is a call of an operation. The operation either returns an error, which huma
// answers, or writes in the body of a huma.StreamResponse.
type humaCall struct {
	ctx    context.Context
	in     *humaInput
	header http.Header
	stream huma.Context
	pause  func()
}

// answer runs handle until it has returned, or wants to write; then the response begins,
// and handle continues.
func (c *humaCall) answer(handle func(*humaCall) error) (*huma.StreamResponse, error) {
	var err error
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		c.pause = func() { yield(struct{}{}) }
		err = handle(c)
	})
	if _, writes := next(); !writes {
		stop()
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(huma.Context) {}}, nil
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer stop()
		c.stream = ctx
		for name, values := range c.header {
			for _, v := range values {
				ctx.AppendHeader(name, v)
			}
		}
		next()
	}}, nil
}

func (c *humaCall) begin() huma.Context {
	if c.stream == nil {
		c.pause()
	}
	return c.stream
}

func (c *humaCall) Context() context.Context { return c.ctx }

func (c *humaCall) Param(string) string { return c.in.ID }

func (c *humaCall) Body() ([]byte, error) { return c.in.RawBody, nil }

func (c *humaCall) AddHeader(name, value string) { c.header.Add(name, value) }

func (c *humaCall) Send(status int, contentType string, body []byte) error {
	c.AddHeader("Content-Type", contentType)
	stream := c.begin()
	stream.SetStatus(status)
	_, err := stream.BodyWriter().Write(body)
	return err
}

func (c *humaCall) NoContent(status int) error {
	c.begin().SetStatus(status)
	return nil
}

func (c *humaCall) Writer() io.Writer { return c.begin().BodyWriter() }

func (c *humaCall) Flush() error {
	return http.NewResponseController(c.begin().BodyWriter().(http.ResponseWriter)).Flush()
}

func (c *humaCall) Abort(status int, text string) error { return huma.NewError(status, text) }

// The way of Echo's that a user finds first: an error of a handler is answered by Echo
// when the middleware has returned. stetecho4 answers it inside.
func TestEchoWrapMiddlewareIsLoud(t *testing.T) {
	serve := func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route, handle func(adaptertest.Route, echoCall) error) string {
		e := echo.New()
		for _, r := range routes {
			e.Add(r.Method, r.Colon(), func(c echo.Context) error { return handle(r, echoCall{c}) }, echo.WrapMiddleware(m.Handler))
		}
		return adaptertest.Serve(t, e)
	}
	adaptertest.Loud(t, adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			return serve(t, m, routes, func(r adaptertest.Route, c echoCall) error { return r.Handle(c) })
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			return serve(t, m.Middleware, routes, func(r adaptertest.Route, c echoCall) error {
				return r.HandleTx(c, stethttp.Tx[*adaptertest.Tx](c.Context()))
			})
		},
	})
}

type echoCall struct{ c echo.Context }

func (c echoCall) Context() context.Context     { return c.c.Request().Context() }
func (c echoCall) Param(name string) string     { return c.c.Param(name) }
func (c echoCall) Body() ([]byte, error)        { return io.ReadAll(c.c.Request().Body) }
func (c echoCall) AddHeader(name, value string) { c.c.Response().Header().Add(name, value) }
func (c echoCall) Send(status int, contentType string, body []byte) error {
	return c.c.Blob(status, contentType, body)
}
func (c echoCall) NoContent(status int) error { return c.c.NoContent(status) }
func (c echoCall) Writer() io.Writer          { return c.c.Response() }
func (c echoCall) Flush() error               { return http.NewResponseController(c.c.Response()).Flush() }
func (c echoCall) Abort(status int, text string) error {
	return echo.NewHTTPError(status, text)
}

// The way of Fiber's: its adaptor calls the handler when the middleware has returned, so
// that stethttp refuses it. stetfiber calls it inside.
func TestFiberAdaptorMiddlewareIsLoud(t *testing.T) {
	adaptertest.Loud(t, adaptertest.Adapter{Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
		app := fiber.New()
		app.Use(func(c fiber.Ctx) (err error) { // as its recover middleware does
			defer func() {
				if recover() != nil {
					err = errors.New("the handler panicked")
				}
			}()
			return c.Next()
		})
		for _, r := range routes {
			app.Add([]string{r.Method}, r.Colon(), adaptor.HTTPMiddleware(m.Handler), func(c fiber.Ctx) error { return r.Handle(fiberCall{c}) })
		}
		return serveFiber(t, app)
	}})
}

type fiberCall struct{ c fiber.Ctx }

func (c fiberCall) Context() context.Context     { return c.c.Context() }
func (c fiberCall) Param(name string) string     { return c.c.Params(name) }
func (c fiberCall) Body() ([]byte, error)        { return c.c.Body(), nil }
func (c fiberCall) AddHeader(name, value string) { c.c.Append(name, value) }
func (c fiberCall) Send(status int, contentType string, body []byte) error {
	c.c.Set("Content-Type", contentType)
	return c.c.Status(status).Send(body)
}
func (c fiberCall) NoContent(status int) error { c.c.Status(status); return nil }
func (c fiberCall) Writer() io.Writer          { return c.c }
func (c fiberCall) Flush() error               { return nil }
func (c fiberCall) Abort(status int, text string) error {
	return fiber.NewError(status, text)
}
