package stetclient

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Transport is an http.RoundTripper. Each request with one of Options.Methods is one operation:
// it is sent with one key, as often as the policy allows, until it has an outcome. A Transport
// is safe for concurrent use, starts no goroutines, and need not be closed.
type Transport struct {
	base http.RoundTripper
	o    Options
	live names
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a Transport over base. base is called for each attempt, and can add credentials
// that expire. A nil base means a clone of http.DefaultTransport that waits
// DefaultHeaderTimeout for a response's header. Invalid options are stet.KindInvalid.
func New(base http.RoundTripper, o Options) (*Transport, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if base == nil {
		own := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
		if def, ok := http.DefaultTransport.(*http.Transport); ok {
			own = def.Clone()
		}
		own.ResponseHeaderTimeout = DefaultHeaderTimeout
		base = own
	}
	return &Transport{base: base, o: o}, nil
}

// CloseIdleConnections closes the idle connections of the RoundTripper below, for
// http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper. Its response is the operation's outcome; see InfoOf.
// Its error is an *Error. Requests that are no operations return the error of the RoundTripper
// below.
//
// The key comes from the request's header, or WithKey, or the request before a redirect. If
// there is none, it is a new UUID. If a redirect changes the method, such as to GET after a
// 303, the request is no operation.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !t.covers(req) {
		return t.base.RoundTrip(req)
	}
	c := &call{Context: req.Context(), t: t}
	known := stet.NotExecuted
	if from := redirected(req); from != nil {
		known = from.series.earlier
	}
	if err := c.prepare(req); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must, and nothing was sent
		}
		return nil, &Error{Reason: ReasonRequest, Info: Info{Execution: stet.NotExecuted, Key: c.key}, Cause: err}
	}
	if t.o.Journal != nil {
		return t.journaled(c)
	}
	return c.do(known)
}

// covers reports whether a request is an operation.
func (t *Transport) covers(req *http.Request) bool {
	if t.o.Skip != nil && t.o.Skip(req) {
		return false
	}
	if from := redirected(req); from != nil {
		return from.req.Method == req.Method // otherwise it fetches the result
	}
	if slices.Contains(t.o.Methods, req.Method) || len(req.Header[t.o.Service.Header]) > 0 {
		return true
	}
	_, given := req.Context().Value(keyOf{}).(string)
	_, named := req.Context().Value(intentName{}).(string)
	return given || named
}

// chooseKey returns the key of a request.
func (c *call) chooseKey(req *http.Request) (key string, err error) {
	s := &c.t.o.Service
	key, c.given = req.Context().Value(keyOf{}).(string)
	switch values := req.Header[s.Header]; {
	case len(values) > 1:
		return "", misuse.Errorf("stetclient: the request has %d %s headers", len(values), s.Header)
	case len(values) == 1:
		named, err := unquote(values[0])
		if err == nil && c.given && key != named {
			err = misuse.Errorf("stetclient: the request's %s header and its context name different keys", s.Header)
		}
		c.given = true
		return named, err
	case c.given:
		return key, checkKey(key)
	}
	if from := redirected(req); from != nil {
		return from.key, nil
	}
	return stet.NewKey(), nil
}

// field is the value of the header for a key that was checked.
func (t *Transport) field(key string) string {
	if t.o.Service.Raw {
		return key
	}
	if strings.ContainsAny(key, `"\`) {
		return strconv.Quote(key) // for visible ASCII the same as RFC 9651, section 4.1.6
	}
	return `"` + key + `"`
}

// unquote returns the key that a header's value names.
func unquote(field string) (string, error) {
	key := strings.Trim(field, " \t")
	if strings.HasPrefix(key, `"`) {
		if len(key) > maxField {
			return "", misuse.Errorf("stetclient: the key of the request has %d bytes", len(key))
		}
		item, err := httpsfv.UnmarshalItem([]string{key})
		if err != nil {
			return "", misuse.Errorf("stetclient: the key of the request begins with a quote and is no structured field string (RFC 9651): %w", err)
		}
		key, _ = item.Value.(string) // it begins with a quote
	}
	return key, checkKey(key)
}

// redirected returns the call whose response redirected an http.Client to req, or nil.
func redirected(req *http.Request) *call {
	for res := req.Response; res != nil && res.Request != nil; res = res.Request.Response {
		if c := callOf(res); c != nil {
			return c
		}
	}
	return nil
}

// callOf returns the call that returned a response, or nil.
func callOf(res *http.Response) *call {
	if res == nil || res.Request == nil {
		return nil
	}
	c, _ := res.Request.Context().Value(callKey{}).(*call)
	return c
}
