package stethttp

import (
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet"
)

const (
	// DefaultHeader is the request header that carries the key.
	DefaultHeader = "Idempotency-Key"
	// DefaultReplayedHeader is the response header that marks a replay.
	DefaultReplayedHeader = "Idempotent-Replayed"
	// DefaultMaxBody bounds request bodies, in bytes.
	DefaultMaxBody = 1 << 20
	// DefaultMaxWait bounds how long a request may ask to wait.
	DefaultMaxWait = 10 * time.Second
	// DefaultProblemBase is what the types of problems begin with.
	DefaultProblemBase = "https://github.com/stet-go/stet/blob/main/docs/problems.md#"
)

// What browsers on other origins must be allowed to send and to see (CORS).
// With other header names in Options, put those in their place.
const (
	// CORSAllowHeaders is for Access-Control-Allow-Headers.
	CORSAllowHeaders = "Idempotency-Key, Prefer"
	// CORSExposeHeaders is for Access-Control-Expose-Headers.
	CORSExposeHeaders = "Idempotent-Replayed, Location, Retry-After, Preference-Applied"
)

// Options configure a Middleware. Scope is required; the zero value of every
// other field stands for its default.
type Options struct {
	// Scope says whose key it is: a tenant, a principal, an API account, as
	// authentication has established it. 1 to stet.MaxScope bytes. "" refuses
	// the request with 403 (problem scope-missing), an error with 500
	// (scope-failed); neither executes anything. For a service that has only
	// one tenant there is SingleTenant.
	Scope func(*http.Request) (string, error)
	// Class names the policy, one of stet.Options.Classes. Default: "", the
	// policy without a class.
	Class func(*http.Request) string

	// Header is the name of the request header that carries the key. Default
	// DefaultHeader.
	Header string
	// Strict accepts only the quoted form of a key, a structured field of
	// type String (RFC 9651). By default a value that does not begin with a
	// quote is taken as it is, and names the same operation as the quoted
	// form of it.
	Strict bool
	// FoldCase makes keys that differ in the case of ASCII letters the same.
	FoldCase bool
	// Optional passes requests without a key through to the handler,
	// unprotected. By default they are refused with 400 (key-missing).
	Optional bool
	// Methods are the protected methods. Requests with others pass through,
	// even with a key. Default POST and PATCH.
	Methods []string
	// Skip passes a request through, unprotected, if it returns true: for
	// protocol upgrades and the like.
	Skip func(*http.Request) bool

	// MaxBody is the greatest request body in bytes; a larger one is refused
	// with 413 before anything else happens. Default DefaultMaxBody.
	MaxBody int64
	// Canonicalize, if set, is given a request's body (read-only, not to be
	// kept, never empty) and its media type in lower case ("" if there is
	// none), and returns the form of it that goes into the fingerprint, so
	// that bodies which mean the same match. On an error the raw bytes do.
	// Default: always the raw bytes; of a multipart body, its parts.
	Canonicalize func(mediaType string, body []byte) ([]byte, error)
	// MaxWait bounds how long a duplicate of a request in flight waits when
	// it asks to with "Prefer: wait=N" (RFC 7240), and so a request of an Async.
	// Default DefaultMaxWait; at most stet.MaxWait; negative: the preference is
	// ignored. A server's WriteTimeout must be longer.
	MaxWait time.Duration

	// NotExecuted says of a response that nothing was executed: it is passed
	// on but not stored, and a retry runs again. Default: the function
	// NotExecuted. Of other responses, those of 500 and above are stored as
	// failed, the rest as completed, and all are replayed.
	NotExecuted func(status int, header http.Header) bool
	// KeepHeaders, if not nil, are the only response headers that are stored.
	KeepHeaders []string
	// DropHeaders are response headers that are not stored.
	DropHeaders []string
	// StoreSetCookie stores Set-Cookie too, so that a retry gets the session
	// of the first caller.
	StoreSetCookie bool
	// ReplayedHeader is the response header that is "true" on replays.
	// Default DefaultReplayedHeader.
	ReplayedHeader string

	// FailOpen runs requests unprotected while the store cannot be used,
	// instead of refusing them with 503: a retry may then run twice. Every
	// such request is a stet.EventFailedOpen and a line in ErrorLog.
	FailOpen bool
	// ProblemBase is what the types of problems begin with, an absolute URL;
	// the name of the problem follows. Default DefaultProblemBase.
	ProblemBase string
	// ErrorLog gets what goes wrong; never a key or a body. Default
	// slog.Default().
	ErrorLog *slog.Logger
}

// SingleTenant is the Options.Scope of a service whose keys are all of one
// tenant.
func SingleTenant(*http.Request) (string, error) { return "single-tenant", nil }

// NotExecuted is the default of Options.NotExecuted: it is true for the
// responses that come before an execution, 401, 403, 407, 408, 425, 429, and
// 503 with Retry-After.
func NotExecuted(status int, header http.Header) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable:
		return header.Get("Retry-After") != ""
	default:
		return false
	}
}

// withDefaults returns checked options with their defaults filled in.
func (o Options) withDefaults() (Options, error) {
	if o.Scope == nil {
		return o, invalid("Options.Scope is required, so that nobody gets another's responses; SingleTenant is for services with one tenant")
	}
	o.Header = http.CanonicalHeaderKey(orDefault(o.Header, DefaultHeader))
	o.ReplayedHeader = http.CanonicalHeaderKey(orDefault(o.ReplayedHeader, DefaultReplayedHeader))
	for _, name := range slices.Concat([]string{o.Header, o.ReplayedHeader}, o.KeepHeaders, o.DropHeaders) {
		if !isToken(name) {
			return o, invalid("Options: %q cannot be the name of a header", name)
		}
	}
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	for _, method := range o.Methods {
		if !isToken(method) {
			return o, invalid("Options.Methods: %q cannot be a method", method)
		}
	}
	if o.MaxBody < 0 {
		return o, invalid("Options.MaxBody is negative: %d", o.MaxBody)
	}
	o.MaxBody = orDefault(o.MaxBody, DefaultMaxBody)
	if o.MaxWait > stet.MaxWait {
		return o, invalid("Options.MaxWait is %v; at most %v", o.MaxWait, stet.MaxWait)
	}
	o.MaxWait = orDefault(o.MaxWait, DefaultMaxWait)
	if o.NotExecuted == nil {
		o.NotExecuted = NotExecuted
	}
	if !o.StoreSetCookie && slices.ContainsFunc(o.KeepHeaders, func(name string) bool { return strings.EqualFold(name, "Set-Cookie") }) {
		return o, invalid("Options.KeepHeaders has Set-Cookie; if it is meant to be stored, say so with StoreSetCookie")
	}
	o.ProblemBase = orDefault(o.ProblemBase, DefaultProblemBase)
	if u, err := url.Parse(o.ProblemBase); err != nil || u.Scheme == "" || u.Host == "" {
		return o, invalid("Options.ProblemBase %q is not an absolute URL", o.ProblemBase)
	}
	return o, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// isToken reports whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
