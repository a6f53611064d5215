package stetfiber

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
)

// request returns the request for net/http. Its strings are copies, because Fiber reuses the
// memory of its own.
func (x *exchange) request() *http.Request {
	c := x.c
	ctx := c.RequestCtx()
	h := &ctx.Request.Header
	r := &http.Request{
		Method: strings.Clone(c.Method()),
		Proto:  string(h.Protocol()), ProtoMajor: 1, ProtoMinor: 1,
		Header:     make(http.Header, 8),
		Host:       string(h.Host()),
		RemoteAddr: ctx.RemoteAddr().String(),
		RequestURI: string(h.RequestURI()),
		TLS:        ctx.TLSConnectionState(),
	}
	for name, value := range h.All() {
		name := http.CanonicalHeaderKey(strings.TrimSpace(string(name)))
		if name != "Host" && name != "Transfer-Encoding" {
			r.Header[name] = append(r.Header[name], string(value))
		}
	}
	r.URL = parse(r.RequestURI)
	if c.Matched() { // otherwise the route is not known yet
		r.Pattern = strings.Clone(c.Route().Path)
	}
	for _, name := range c.Route().Params {
		r.SetPathValue(name, strings.Clone(c.Params(name)))
	}
	if around, ok := c.Locals(requestKey{}).(*within); ok {
		x.body, r.Body, r.ContentLength = &requestBody{eof: true}, around.r.Body, around.r.ContentLength
		if !x.at.follows(around.at) {
			r.Body = struct{ io.ReadCloser }{r.Body} // another type: the handler was called before
		}
	} else {
		x.body = newBody(&ctx.Request)
		r.Body, r.ContentLength = x.body, x.body.size
	}
	return r.WithContext(context.WithValue(c.Context(), ctxKey{}, c))
}

// parse returns the URL of a request target. fasthttp takes some that net/url does not.
func parse(target string) *url.URL {
	if u, err := url.ParseRequestURI(target); err == nil {
		return u
	}
	path, query, _ := strings.Cut(target, "?")
	return &url.URL{Path: path, RawQuery: query}
}

// requestBody is the body of a request. stethttp reads it once, before the handler.
type requestBody struct {
	io.Reader
	stream bool  // it comes from the connection
	form   *form // of a body that was read as a form before
	size   int64 // -1 if it is not known
	eof    bool
}

func newBody(req *fasthttp.Request) *requestBody {
	if req.IsBodyStream() {
		return &requestBody{Reader: req.BodyStream(), stream: true, size: int64(max(req.Header.ContentLength(), -1))}
	}
	if f := formOf(req); f != nil {
		return &requestBody{Reader: f, form: f, size: f.size}
	}
	b := req.Body()
	return &requestBody{Reader: bytes.NewReader(b), size: int64(len(b))} // which stethttp copies

}

// Read implements io.Reader. A stream must not be read again after its end.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.eof {
		return 0, io.EOF
	}
	n, err := b.Reader.Read(p)
	b.eof = errors.Is(err, io.EOF)
	return n, err
}

// Close implements io.Closer. The server closes the stream.
func (*requestBody) Close() error { return nil }

func (b *requestBody) close() {
	if b.form != nil {
		b.form.close()
	}
}

// read reports whether nothing of the body is left on the connection.
func (b *requestBody) read() bool { return !b.stream || b.eof }

// setBody sets the body for the handler of this call, from its beginning.
func (x *exchange) setBody(r *http.Request) {
	if x.body.form != nil || !x.body.stream && x.calls <= 1 || r.Body == io.ReadCloser(x.body) {
		return // it is in place
	}
	if b, err := io.ReadAll(r.Body); err == nil { // from memory
		x.c.Request().SetBody(b)
		if body, ok := r.Body.(interface{ Rewind() }); ok {
			body.Rewind() // for a second middleware, it is unread
		}
	}
}

// within is the value of a middleware for one behind it.
type within struct {
	r  *http.Request
	at position
}

// position is the position of a request in the routes of an app.
type position struct {
	path           string
	route, handler int64
	known          bool
}

// positionOf returns the position of c, which Fiber does not export.
func positionOf(c fiber.Ctx) position {
	p := position{path: strings.Clone(c.Path())}
	v := reflect.Indirect(reflect.ValueOf(c))
	if v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[fiber.DefaultCtx]() { // a context of the service's own
		v = reflect.Indirect(v.FieldByName("DefaultCtx"))
	}
	if v.Kind() != reflect.Struct {
		return p
	}
	route, handler := v.FieldByName("indexRoute"), v.FieldByName("indexHandler")
	if p.known = route.CanInt() && handler.CanInt(); p.known {
		p.route, p.handler = route.Int(), handler.Int()
	}
	return p
}

// follows reports whether a request came from before to p by fiber.Ctx.Next alone. A handler
// that calls RestartRouting may have had effects.
func (p position) follows(before position) bool {
	return p.known && before.known && p.path == before.path &&
		(p.route > before.route || p.route == before.route && p.handler > before.handler)
}
