package stetlambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"
)

// MaxBody is the limit of a response body, in sent bytes (binary content takes a third more,
// as base64): the 6 MB of Lambda, less room for the header.
const MaxBody = 6<<20 - 64<<10

// HTTPHandler is what lambda.Start takes.
type HTTPHandler = func(context.Context, events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error)

// HTTP returns the function of a Lambda behind an HTTP API of API Gateway (payload format 2.0)
// or a function URL, which has the same format. h is any handler: a router whose routes have a
// stethttp.Middleware.
//
// API Gateway joins fields of one name with commas, so two Idempotency-Keys arrive as one
// field; stethttp refuses that. It stops waiting after 30 s at most, with 503 or 504. The
// function continues, and a retry with the same key gets its outcome. stet.Policy.RunTimeout
// must be shorter than the function's own timeout, at which Lambda ends the process.
//
// A response is sent as base64 if it is not UTF-8 or has a Content-Encoding. Set-Cookie
// becomes cookies; other fields of one name are joined. A response larger than MaxBody becomes
// a 500, and is logged. A panic of h is logged, and is an error of the invocation: 502 or 500
// for the client.
//
// A request of another format (of a REST API) is an error of the invocation.
func HTTP(h http.Handler) HTTPHandler {
	return func(ctx context.Context, e events.APIGatewayV2HTTPRequest) (out events.APIGatewayV2HTTPResponse, err error) {
		r, err := request(ctx, &e)
		if errors.Is(err, errBody) {
			return plain(http.StatusBadRequest, err.Error()), nil
		}
		if err != nil {
			return out, err
		}
		w := &response{header: make(http.Header), head: r.Method == http.MethodHead}
		defer func() {
			w.end()
			if v := recover(); v != nil {
				slog.ErrorContext(ctx, "stetlambda: the handler panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
				out, err = events.APIGatewayV2HTTPResponse{}, errors.New("stetlambda: the handler panicked")
			}
		}()
		h.ServeHTTP(w, r)
		return w.result(ctx), nil
	}
}

type eventKey struct{}

// Event returns the event that an HTTP request came by: what authorizers have said is in its
// RequestContext.Authorizer. It is nil outside of HTTP.
func Event(ctx context.Context) *events.APIGatewayV2HTTPRequest {
	e, _ := ctx.Value(eventKey{}).(*events.APIGatewayV2HTTPRequest)
	return e
}

// Claim returns a stethttp.Options.Scope: the claim of the token that API Gateway's JWT
// authorizer has verified, "sub" for instance. A request without it has no scope, and is
// refused.
func Claim(name string) func(*http.Request) (string, error) {
	return func(r *http.Request) (string, error) {
		e := Event(r.Context())
		if e == nil || e.RequestContext.Authorizer == nil || e.RequestContext.Authorizer.JWT == nil {
			return "", nil
		}
		return e.RequestContext.Authorizer.JWT.Claims[name], nil
	}
}

var errBody = errors.New("stetlambda: the body is not the base64 that it is said to be")

// request is the request that an event brings.
func request(ctx context.Context, e *events.APIGatewayV2HTTPRequest) (*http.Request, error) {
	if e.Version != "2.0" || e.RequestContext.HTTP.Method == "" {
		return nil, fmt.Errorf("stetlambda: the event has the payload format %q; HTTP needs 2.0, of an HTTP API or a function URL", e.Version)
	}
	body := []byte(e.Body)
	if e.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(e.Body); err != nil {
			return nil, errBody
		}
	}
	u := &url.URL{Path: e.RawPath, RawQuery: e.RawQueryString}
	if p, err := url.PathUnescape(e.RawPath); err == nil {
		u.Path, u.RawPath = p, e.RawPath
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path, u.RawPath = "/"+u.Path, ""
	}
	r, err := http.NewRequestWithContext(context.WithValue(ctx, eventKey{}, e), e.RequestContext.HTTP.Method, "/", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("stetlambda: %w", err)
	}
	r.URL, r.RequestURI = u, u.RequestURI()
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		r.Header.Add(name, e.Headers[name])
	}
	if len(e.Cookies) > 0 {
		r.Header.Set("Cookie", strings.Join(e.Cookies, "; "))
	}
	r.Host = r.Header.Get("Host")
	if r.Host == "" {
		r.Host = e.RequestContext.DomainName
	}
	for _, of := range []string{"Host", "Transfer-Encoding", "Connection"} { // of the way to API Gateway
		r.Header.Del(of)
	}
	r.RemoteAddr = net.JoinHostPort(e.RequestContext.HTTP.SourceIP, "0")
	return r, nil
}

// response is a response while it is being written.
type response struct {
	head bool

	mu     sync.Mutex
	header http.Header
	final  http.Header // as it was when the status was written
	status int         // 0 until then
	body   bytes.Buffer
	size   int64 // written bytes
	done   bool  // the handler has returned
}

var (
	errReturned = errors.New("stetlambda: write after the handler returned")
	errTooLarge = fmt.Errorf("stetlambda: Lambda sends at most %d bytes of a response", MaxBody)
)

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return make(http.Header) // of a goroutine that was left behind
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter. Statuses of 1xx cannot be sent.
func (w *response) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

func (w *response) writeHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("stetlambda: invalid status %d", status)) // as net/http does
	}
	if w.done || w.status != 0 || status < 200 {
		return
	}
	w.status, w.final = status, w.header.Clone()
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return 0, errReturned
	}
	w.writeHeader(http.StatusOK)
	if w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if w.size += int64(len(b)); w.size > MaxBody {
		return 0, errTooLarge
	}
	if w.head {
		return len(b), nil
	}
	return w.body.Write(b)
}

// Flush implements http.Flusher. Flushed parts are sent with the rest, when the handler has
// returned.
func (w *response) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
}

// end refuses later writes.
func (w *response) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	w.done = true
}

// result is what Lambda gets.
func (w *response) result(ctx context.Context) events.APIGatewayV2HTTPResponse {
	w.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	body := w.body.Bytes()
	text := utf8.Valid(body) && w.final.Get("Content-Encoding") == "" && fits(body)
	if !text && base64.StdEncoding.EncodedLen(len(body)) > MaxBody || w.size > MaxBody {
		slog.ErrorContext(ctx, "stetlambda: the response is larger than Lambda sends; the request was handled", slog.Int64("bytes", w.size), slog.Int("status", w.status))
		return plain(http.StatusInternalServerError, "the request was handled, and its response is larger than Lambda can send")
	}
	if len(body) > 0 && w.final.Get("Content-Type") == "" {
		w.final.Set("Content-Type", http.DetectContentType(body))
	}
	out := events.APIGatewayV2HTTPResponse{StatusCode: w.status, Headers: make(map[string]string), Cookies: w.final["Set-Cookie"], Body: string(body)}
	if !text {
		out.Body, out.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	for name, vs := range w.final {
		switch name {
		case "Set-Cookie", "Content-Length", "Transfer-Encoding", "Connection", "Trailer": // of the way from API Gateway
		default:
			if len(vs) > 0 {
				out.Headers[name] = strings.Join(vs, ", ")
			}
		}
	}
	return out
}

// fits reports whether a text can be sent as JSON, in which some characters take six bytes.
func fits(body []byte) bool {
	if len(body) <= MaxBody/6 {
		return true
	}
	b, err := json.Marshal(string(body))
	return err == nil && len(b) <= MaxBody
}

func plain(status int, text string) events.APIGatewayV2HTTPResponse {
	return events.APIGatewayV2HTTPResponse{StatusCode: status, Headers: map[string]string{"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}, Body: text + "\n"}
}
