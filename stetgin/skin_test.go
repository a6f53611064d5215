package stetgin_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet/stetgin"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/skintest"
)

func init() { gin.SetMode(gin.ReleaseMode) }

// engine is a Gin engine as gin.Default makes it, but quiet.
func engine() *gin.Engine {
	r := gin.New()
	r.Use(gin.LoggerWithWriter(io.Discard), gin.RecoveryWithWriter(io.Discard))
	return r
}

// ginCall does in Gin's words what a case asks for. An error is one of gin.Context.Error,
// which answerErrors answers.
type ginCall struct{ c *gin.Context }

func (c ginCall) Context() context.Context     { return c.c.Request.Context() }
func (c ginCall) Param(name string) string     { return c.c.Param(name) }
func (c ginCall) Body() ([]byte, error)        { return c.c.GetRawData() }
func (c ginCall) AddHeader(name, value string) { c.c.Writer.Header().Add(name, value) }
func (c ginCall) NoContent(status int) error   { c.c.Status(status); return nil }
func (c ginCall) Writer() io.Writer            { return c.c.Writer }
func (c ginCall) Flush() error                 { c.c.Writer.Flush(); return nil }

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

func skin(wire func(*gin.Engine, skintest.Route, gin.HandlerFunc, gin.HandlerFunc)) skintest.Skin {
	return skintest.Skin{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []skintest.Route) string {
			e := engine()
			for _, r := range routes {
				wire(e, r, stetgin.Middleware(m), func(c *gin.Context) { handled(c, r.Handle(ginCall{c})) })
			}
			return skintest.Serve(t, e)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*skintest.Tx], routes []skintest.Route) string {
			e := engine()
			for _, r := range routes {
				h := stetgin.HandleTx(m, func(c *gin.Context, tx *skintest.Tx) {
					handled(c, r.HandleTx(ginCall{c}, tx))
					if len(c.Errors) > 0 && !c.Writer.Written() {
						c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error": c.Errors.Last().Error()})
					}
				})
				e.Handle(r.Method, r.Colon(), h)
			}
			return skintest.Serve(t, e)
		},
	}
}

// The three ways in which Gin's users wire a middleware.

func TestRouteConforms(t *testing.T) {
	skintest.Run(t, skin(func(e *gin.Engine, r skintest.Route, m, h gin.HandlerFunc) {
		e.Handle(r.Method, r.Colon(), m, answerErrors, h)
	}))
}

func TestGroupConforms(t *testing.T) {
	skintest.Run(t, skin(func(e *gin.Engine, r skintest.Route, m, h gin.HandlerFunc) {
		e.Group("/", m, answerErrors).Handle(r.Method, r.Colon(), h)
	}))
}

func TestUseConforms(t *testing.T) {
	skintest.Run(t, skin(func(e *gin.Engine, r skintest.Route, m, h gin.HandlerFunc) {
		e.Use(m, answerErrors)
		e.Handle(r.Method, r.Colon(), h)
	}))
}

var errBank = errors.New("the bank is closed")
