package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/mcpcall"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/stethttp"
)

// MCP makes a route the endpoint of a Model Context Protocol server, by streamable HTTP. Calls
// of its tools are protected; other messages pass.
type MCP struct {
	KeyName     string   `yaml:"key_name"`
	Unprotected []string `yaml:"unprotected"`
}

const (
	// defaultMCPWait is how long a call waits for the same call in flight.
	defaultMCPWait = 30 * time.Second
	// maxWatched is how much of a response is read into memory, in bytes.
	maxWatched = 16 << 20
)

func (m *MCP) keyName() string { return cmp.Or(m.KeyName, mcpcall.KeyName) }

// asMCP sets the fields that MCP implies, or returns an error about a field that contradicts it.
func (r *Route) asMCP() error {
	if r.MCP == nil || r.Pass {
		return nil
	}
	if err := mcpcall.CheckName(r.MCP.keyName()); err != nil {
		return under(at("key_name", "%q is no name for _meta: %w", r.MCP.KeyName, err), "mcp")
	}
	for i, name := range r.MCP.Unprotected {
		if name == "" || slices.Contains(r.MCP.Unprotected[:i], name) {
			return under(at("unprotected", "%q is the name of no tool, or there twice", name), "mcp")
		}
	}
	for _, refused := range []struct {
		is    bool
		field string
		why   string
	}{
		{len(r.Methods) > 0 && !slices.Equal(r.Methods, []string{http.MethodPost}), "methods", "messages of the protocol are posted"},
		{r.KeyPointer != "", "key_pointer", "the key is in _meta: see mcp.key_name"},
		{r.Fingerprint != "", "fingerprint", "of a call of a tool, the tool and its arguments are compared"},
		{len(r.Ignore) > 0, "ignore", "of a call of a tool, the tool and its arguments are compared"},
		{r.Async != nil, "async", "the caller of a tool needs its result"},
		{r.Settles == settlesService, "settles", "a service cannot settle a call of a tool"},
	} {
		if refused.is {
			return at(refused.field, "a route with mcp cannot have it: %s; leave it out", refused.why)
		}
	}
	r.Methods = []string{http.MethodPost}
	r.KeyPointer = "/params/_meta/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(r.MCP.keyName())
	if r.Wait == 0 {
		r.Wait = Duration(defaultMCPWait)
	}
	if r.MaxWait == 0 && time.Duration(r.Wait) > stethttp.DefaultMaxWait {
		r.MaxWait = r.Wait
	}
	return nil
}

// toolName is the name of an operation of a route with MCP.
func toolName(r *http.Request) string {
	if m, ok := r.Context().Value(mcpKey{}).(*mcpcall.Message); ok {
		return "tools/call " + m.Tool
	}
	return "tools/call"
}

// compareCalls returns the tool and its arguments, for the fingerprint.
func compareCalls(_ string, body []byte) ([]byte, error) {
	m, err := mcpcall.Read(body)
	switch {
	case err != nil:
		return nil, err
	case !m.Call:
		return nil, errors.New("proxy: not a tool call")
	}
	return append([]byte("tools/call\x00"+m.Tool+"\x00"), m.Args...), nil
}

// toolDoor is before the middleware of a route with MCP. Only calls of tools go to the
// middleware. It converts responses of the middleware to responses of the protocol.
type toolDoor struct {
	route    *MCP
	limit    int64 // of the content
	base     string
	replayed string
	protect  http.Handler // calls of tools
	pass     http.Handler // other messages
}

type mcpKey struct{}

// ServeHTTP implements http.Handler.
func (d *toolDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.Header["Content-Encoding"]) > 0 {
		refuseMessage(w, http.StatusUnsupportedMediaType, "the content must not be encoded.")
		return
	}
	content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, d.limit))
	if err != nil {
		status, text := http.StatusBadRequest, "the content ended early or could not be read."
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status, text = http.StatusRequestEntityTooLarge, fmt.Sprintf("the content is larger than %d bytes.", d.limit)
		}
		refuseMessage(w, status, text)
		return
	}
	stateOf(r.Context()).hold(len(content)) // the middleware has a copy
	m, err := mcpcall.Read(content)
	if err != nil {
		e, _ := errors.AsType[*mcpcall.Error](err)
		answerJSON(w, http.StatusBadRequest, e.Response())
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), mcpKey{}, &m))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	if !m.Call || slices.Contains(d.route.Unprotected, m.Tool) {
		d.pass.ServeHTTP(w, r)
		return
	}
	r.Header = r.Header.Clone()
	r.Header.Del("Accept-Encoding") // toolWatch reads the service's response
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && mediaType == jsonType {
		r.Header.Set("Content-Type", jsonType) // one form for all retries: its parameters mean nothing
	}
	t := &toolAnswer{w: w, d: d, id: m.ID, hold: stateOf(r.Context()).hold}
	d.protect.ServeHTTP(t, r)
	t.end()
}

// refuseMessage responds to a content that is no message.
func refuseMessage(w http.ResponseWriter, status int, why string) {
	e := mcpcall.Error{Code: mcpcall.CodeInvalidRequest, Text: "Not executed: " + why}
	answerJSON(w, status, e.Response())
}

func answerJSON(w http.ResponseWriter, status int, content []byte) {
	h := w.Header()
	for _, name := range [...]string{"Content-Encoding", "Etag", "Last-Modified", "Mcp-Session-Id", "X-Accel-Buffering", "Trailer"} {
		h.Del(name)
	}
	h.Set("Content-Type", jsonType)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(status)
	_, _ = w.Write(content)
}

// toolAnswer forwards the service's response to a call. It holds back a response of the
// middleware, and a replay, to convert it.
type toolAnswer struct {
	w      http.ResponseWriter
	d      *toolDoor
	id     []byte
	begun  bool
	holds  bool
	status int
	held   []byte
	hold   func(int) // counts bytes in memory
}

// Unwrap is for http.ResponseController.
func (t *toolAnswer) Unwrap() http.ResponseWriter { return t.w }

// Header implements http.ResponseWriter.
func (t *toolAnswer) Header() http.Header { return t.w.Header() }

// WriteHeader implements http.ResponseWriter.
func (t *toolAnswer) WriteHeader(status int) {
	if t.begun {
		return
	}
	if status < 200 {
		t.w.WriteHeader(status)
		return
	}
	h := t.w.Header()
	t.begun, t.status = true, status
	t.holds = own(h) || h.Get(t.d.replayed) == "true"
	if !t.holds {
		t.w.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (t *toolAnswer) Write(p []byte) (int, error) {
	t.WriteHeader(http.StatusOK)
	if t.holds {
		t.hold(len(p))
		t.held = append(t.held, p...) // at most a stored response, or a problem
		return len(p), nil
	}
	return t.w.Write(p)
}

// FlushError is for http.ResponseController.
func (t *toolAnswer) FlushError() error {
	t.WriteHeader(http.StatusOK)
	if t.holds {
		return nil
	}
	return http.NewResponseController(t.w).Flush()
}

// end sends the response that was held back, converted to the protocol.
func (t *toolAnswer) end() {
	if !t.holds {
		return
	}
	h := t.w.Header()
	words := mcpcall.Words{KeyName: t.d.route.keyName()}
	mediaType, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	if own(h) {
		var doc problem.Document
		_ = json.Unmarshal(t.held, &doc)
		if name, own := strings.CutPrefix(doc.Type, t.d.base); own {
			seconds, _ := strconv.Atoi(h.Get("Retry-After"))
			r := words.Named(name, doc.Detail, doc.Retryable, mcpcall.ExecutionOf(doc.Execution), time.Duration(seconds)*time.Second)
			result := r.Result()
			if h.Get(t.d.replayed) == "true" {
				result = r.Replay()
			}
			answerJSON(t.w, http.StatusOK, mcpcall.Respond(t.id, result))
			return
		}
	} else if reply, ok := mcpcall.ReplyIn(mediaType == eventStream, t.held); ok {
		answerJSON(t.w, http.StatusOK, reply.Replay(t.id))
		return
	} else if t.status < http.StatusBadRequest { // of another adapter, or of a verifier
		answerJSON(t.w, http.StatusOK, mcpcall.Respond(t.id, words.Other(mediaType, t.held)))
		return
	}
	t.w.WriteHeader(t.status) // of the service, but not of the protocol
	_, _ = t.w.Write(t.held)
}

// own reports whether a response is a problem of stet: see notOwn.
func own(h http.Header) bool { return h.Get("Content-Type") == problem.MediaType }

// notOwn adds a parameter to the media type of a service's problem. The service can use stet,
// too, and its problem must not be taken for one of the proxy.
func notOwn(h http.Header) {
	if own(h) {
		h.Set("Content-Type", problem.MediaType+"; charset=utf-8")
	}
}

const (
	eventStream = "text/event-stream"
	jsonType    = "application/json"
)

// toolWatch is between the middleware of a route with MCP and the service. It reads whether a
// call had an effect.
type toolWatch struct {
	route *route
	next  http.Handler
	log   *slog.Logger
}

// ServeHTTP implements http.Handler.
func (t *toolWatch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	run := stet.FromContext(r.Context())
	m, _ := r.Context().Value(mcpKey{}).(*mcpcall.Message)
	if run == nil || m == nil {
		t.next.ServeHTTP(w, r)
		return
	}
	a := &watched{ResponseWriter: w, id: m.ID, hold: stateOf(r.Context()).hold}
	t.next.ServeHTTP(a, r)
	a.end()
	switch {
	case run.Declared() != stet.Executed: // it was known before
	case a.replied && a.notBegun && !a.others, !a.replied && a.refused():
		run.Declare(stet.NotExecuted, 0)
	case a.others || !a.replied && a.status < http.StatusInternalServerError && a.status != http.StatusRequestTimeout:
		t.log.Warn("proxy: the outcome of an operation is unknown: the service's answer to a tool call has no readable response of the protocol",
			operation(run, t.route.class()), slog.Int("status", a.status))
		run.Declare(stet.MayHaveExecuted, t.route.after)
	}
}

// watched is the http.ResponseWriter of toolWatch. It has no Unwrap, so that it sees all writes.
type watched struct {
	http.ResponseWriter
	id     []byte
	hold   func(int)
	status int // 0 until there is one
	heldContent

	replied, notBegun bool
	others            bool // there are responses to other calls, which retries must not get
}

// heldContent is the content of a tool's response.
type heldContent struct {
	stream, encoded bool
	events          mcpcall.Events
	content         []byte // unless it is a stream
	counted         int
	large           bool // more than can be held
}

// WriteHeader implements http.ResponseWriter.
func (a *watched) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
		h := a.Header()
		mediaType, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
		a.stream = mediaType == eventStream
		coding := h.Get("Content-Encoding")
		a.encoded = coding != "" && !strings.EqualFold(coding, "identity")
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *watched) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if !a.encoded && !a.large {
		a.look(p)
	}
	return a.ResponseWriter.Write(p)
}

func (a *watched) look(p []byte) {
	if a.stream {
		a.events.Write(p, a.message)
	} else {
		a.content = append(a.content, p...)
	}
	held := len(a.content) + a.events.Held()
	if held > a.counted {
		a.hold(held - a.counted)
		a.counted = held
	}
	if held > maxWatched {
		a.large, a.content, a.events = true, nil, mcpcall.Events{}
	}
}

// message reads one message of the service.
func (a *watched) message(data []byte) {
	switch r, ok := mcpcall.ReadReply(data); {
	case ok && r.For(a.id):
		a.replied, a.notBegun = true, r.NotBegun(a.status)
	case ok && a.status < http.StatusBadRequest: // else the ID may be missing
		a.others = true
	}
}

func (a *watched) end() {
	if a.stream {
		a.events.End(a.message)
	} else {
		a.message(a.content)
	}
}

// refused reports whether the service has refused the message by its status.
func (a *watched) refused() bool {
	return a.status >= 400 && a.status < 500 && a.status != http.StatusRequestTimeout
}

// FlushError is for http.ResponseController.
func (a *watched) FlushError() error { return http.NewResponseController(a.ResponseWriter).Flush() }
