package stetgin_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet/contrib/stetgin"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

func init() { gin.SetMode(gin.ReleaseMode) }

var errBank = errors.New("the bank is closed")

// engine is a Gin engine as gin.Default makes it, but quiet.
func engine() *gin.Engine {
	r := gin.New()
	r.Use(gin.LoggerWithWriter(io.Discard), gin.RecoveryWithWriter(io.Discard))
	return r
}

// paid answers 201.
func paid(c *gin.Context) { c.String(http.StatusCreated, "paid") }

// ginCall is an adaptertest.Call over Gin's context. An error is one of gin.Context.Error,
// which answerErrors answers.
type ginCall struct{ c *gin.Context }

func (c ginCall) Context() context.Context     { return c.c.Request.Context() }
func (c ginCall) Param(name string) string     { return c.c.Param(name) }
func (c ginCall) Body() ([]byte, error)        { return c.c.GetRawData() }
func (c ginCall) AddHeader(name, value string) { c.c.Writer.Header().Add(name, value) }
func (c ginCall) NoContent(status int) error   { c.c.Status(status); return nil }
func (c ginCall) Writer() io.Writer            { return c.c.Writer }
func (c ginCall) Flush() error                 { c.c.Writer.Flush(); return nil }
func (c ginCall) Status() int                  { return c.c.Writer.Status() }

func (c ginCall) Send(status int, contentType string, body []byte) error {
	c.c.Data(status, contentType, body)
	return nil
}

func (c ginCall) Abort(status int, text string) error {
	if text == "" {
		c.c.AbortWithStatus(status)
	} else {
		c.c.AbortWithStatusJSON(status, gin.H{"error": text})
	}
	return nil
}

// handled reports a handler's error as Gin's handlers do.
func handled(c *gin.Context, err error) {
	if err != nil {
		_ = c.Error(err)
	}
}

// answerErrors is the middleware of Gin's documentation.
func answerErrors(c *gin.Context) {
	c.Next()
	if len(c.Errors) > 0 && !c.Writer.Written() {
		c.JSON(http.StatusInternalServerError, gin.H{"error": c.Errors.Last().Error()})
	}
}

// link is middleware of a case.
func link(m adaptertest.Middleware) gin.HandlerFunc {
	if m == nil {
		return func(*gin.Context) {}
	}
	return func(c *gin.Context) { handled(c, m(ginCall{c}, func() error { c.Next(); return nil })) }
}

// chain is stetgin's middleware with that of a route around it and inside.
func chain(m *stethttp.Middleware, r adaptertest.Route) []gin.HandlerFunc {
	list := []gin.HandlerFunc{link(r.Around), stetgin.Middleware(m)}
	if r.Twice {
		list = append(list, stetgin.Middleware(m))
	}
	return append(list, answerErrors, link(r.Inside))
}

// adapter is Gin with the chain that wire registers, which returns where routes belong.
func adapter(wire func(e *gin.Engine, chain []gin.HandlerFunc) gin.IRoutes) adaptertest.Adapter {
	return adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			e := engine()
			to := wire(e, chain(m, routes[0]))
			for _, r := range routes {
				to.Handle(r.Method, r.Colon(), func(c *gin.Context) { handled(c, r.Handle(ginCall{c})) })
			}
			return adaptertest.Serve(t, e)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			e := engine()
			for _, r := range routes {
				h := func(c *gin.Context, tx *adaptertest.Tx) {
					handled(c, r.HandleTx(ginCall{c}, tx))
					if len(c.Errors) > 0 && !c.Writer.Written() {
						c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error": c.Errors.Last().Error()})
					}
				}
				if r.Twice {
					e.Use(stetgin.Middleware(m.Middleware))
				}
				e.Handle(r.Method, r.Colon(), stetgin.HandleTx(m, h))
			}
			return adaptertest.Serve(t, e)
		},
		Chains: true, Seals: true, Recovers: true,
	}
}

// The three ways in which Gin's users wire a middleware.

func TestRouteConforms(t *testing.T) {
	adaptertest.Run(t, adapter(func(e *gin.Engine, chain []gin.HandlerFunc) gin.IRoutes { return onRoute{e, chain} }))
}

// onRoute registers a chain with each route.
type onRoute struct {
	*gin.Engine
	chain []gin.HandlerFunc
}

func (o onRoute) Handle(method, path string, h ...gin.HandlerFunc) gin.IRoutes {
	return o.Engine.Handle(method, path, append(o.chain[:len(o.chain):len(o.chain)], h...)...)
}

func TestGroupConforms(t *testing.T) {
	adaptertest.Run(t, adapter(func(e *gin.Engine, chain []gin.HandlerFunc) gin.IRoutes { return e.Group("/", chain...) }))
}

// TestUseConforms also has Gin answer 405, and transactions that handlers find in the context.
func TestUseConforms(t *testing.T) {
	a := adapter(func(e *gin.Engine, chain []gin.HandlerFunc) gin.IRoutes {
		e.HandleMethodNotAllowed = true
		return e.Use(chain...)
	})
	a.ServeTx = func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
		e := engine()
		e.Use(chain(m.Middleware, routes[0])...)
		for _, r := range routes {
			e.Handle(r.Method, r.Colon(), func(c *gin.Context) {
				handled(c, r.HandleTx(ginCall{c}, stethttp.Tx[*adaptertest.Tx](c.Request.Context())))
			})
		}
		return adaptertest.Serve(t, e)
	}
	adaptertest.Run(t, a)
}
