package stethttp

import (
	"cmp"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/store"
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
	CORSExposeHeaders = "Idempotent-Replayed, Idempotency-Execution, Idempotency-Expires, Location, Retry-After, Preference-Applied"
)

// Options configure a Middleware. Scope is required; the zero value of every
// other field stands for its default.
type Options struct {
	// Scope says whose key it is: a tenant, a principal, an API account, as
	// authentication has established it. 1 to store.MaxScope bytes. "" refuses
	// the request with 403 (problem scope-missing), an error with 500
	// (scope-failed); neither executes anything. For a service that has only
	// one tenant there is SingleTenant.
	Scope func(*http.Request) (string, error)
	// Class names the policy, one of stet.Options.Classes. Default: "", the
	// policy without a class.
	Class func(*http.Request) string
	// Name says what the operation is, for people and verifiers (stet.Op.Name). It
	// is stored in clear, and made to fit by store.LabelText. Default: the method
	// and the pattern of the route ("POST /v1/payments/{id}"), as http.ServeMux has
	// set it; outside of one, the method and the path. Where paths hold what must
	// not be stored in clear, name the route.
	Name func(*http.Request) string
	// Ref returns the service's own reference (stet.Op.Ref), such as an order's ID:
	// it is stored, and made to fit likewise. Default: none.
	Ref func(*http.Request) string
	// RefPointer is a JSON pointer (RFC 6901) to where the content of a request may have
	// the reference, a text or a number; for operations of which Ref returns none. One that
	// does not fit is left out, which ErrorLog is told. Default: none.
	RefPointer string

	// Header is the name of the request header that carries the key. Default
	// DefaultHeader.
	Header string
	// KeyPointer is a JSON pointer (RFC 6901) to where the content of a request may have
	// the key instead, or as well: "/id" for {"id": "…"}. The value must be text, and is
	// the key as it is, without quotes of its own. A request whose header and content
	// have different keys is refused with 400 (key-repeated). Content that is not JSON,
	// or has a Content-Encoding, has no key. As the content is read before the key is
	// known, one larger than MaxBody is refused also where the key is optional. Default
	// "": the header only.
	KeyPointer string
	// KeyPolicy says which keys are good enough. Default: all are.
	KeyPolicy KeyPolicy
	// Strict accepts only the quoted form of a key, a structured field of
	// type String (RFC 9651). By default a value that does not begin with a
	// quote is taken as it is, and names the same operation as the quoted
	// form of it; one with a comma is refused, because it may be two keys
	// that something on the way has joined.
	Strict bool
	// FoldCase makes keys that differ in the case of ASCII letters the same.
	FoldCase bool
	// Optional passes requests without a key through to the handler,
	// unprotected. By default they are refused with 400 (key-missing).
	Optional bool
	// Methods are the protected methods; upper and lower case are the same.
	// Requests with others pass through, even with a key. Default POST and PATCH.
	Methods []string
	// Skip passes a request through, unprotected, if it returns true: for
	// protocol upgrades and the like.
	Skip func(*http.Request) bool

	// MaxBody is the greatest request body in bytes; a larger one is refused
	// with 413 before anything else happens. Default DefaultMaxBody.
	MaxBody int64
	// Canonicalize, if set, returns the form of a request's body that goes into the
	// fingerprint, so that bodies which mean the same match. body is read-only, must not
	// be kept, and is never empty; mediaType is in lower case, "" if there is none.
	// After an error the raw bytes are used. Default: always the raw bytes; of a
	// multipart body, its parts.
	Canonicalize func(mediaType string, body []byte) ([]byte, error)
	// Fingerprint, if set, returns the fingerprint of a request instead, for operations that
	// come in by messages, by stet.Do or by an RPC, too: all of them have to make the
	// same one (see docs/adapters.md). What of a request is not in it does not count: not the
	// method or the path either, so it should have a name of the operation, as
	// stet.NewFingerprint([]byte("order"), body) and canonical.Fingerprint do. body is
	// read-only, must not be kept, and may be empty. An error refuses the request with 400
	// (body-invalid), the zero Fingerprint with 500 (misconfigured); neither executes
	// anything. The error's text goes to ErrorLog. Not with Canonicalize. Default: method,
	// request target, content type, content coding and body.
	Fingerprint func(r *http.Request, body []byte) (store.Fingerprint, error)
	// MaxWait bounds how long a duplicate of a request in flight, or of one whose
	// outcome is unknown, waits when it asks to with "Prefer: wait=N" (RFC 7240), and so
	// a request of an Async. While a request waits, its body is kept only up to 64 KiB:
	// with a larger one it gets 409 if the first run had no effect. Default
	// DefaultMaxWait; at most store.MaxWait; negative: the preference is ignored. A
	// server's WriteTimeout must be longer.
	MaxWait time.Duration

	// Responses says which responses are stored: StoreOutcomes, StoreAll or StoreExecuted.
	// Default StoreOutcomes.
	Responses Responses
	// NotExecuted says of a response that nothing was executed: it is passed
	// on but not stored, and a retry runs again. header has the trailers, too.
	// Default: Responses.NotExecuted, which by default is the function NotExecuted.
	NotExecuted func(status int, header http.Header) bool
	// Failed says of any other response that the operation has failed. In a
	// transaction it is then rolled back, and a retry runs again; without one the
	// response is stored as failed, and replayed. What has not failed is
	// completed, and replayed. trailer has what RPC protocols write at the end
	// of the content, too. Responses may say that it is stored in either case. Default:
	// the function Failed.
	Failed func(status int, header, trailer http.Header) bool
	// Tries is for operations under stet.Policy.Outside: how often the handler is called for
	// one request, if the service answers with 500 or above, without Retry-After, or not at
	// all, and has not settled. Default 1; at most 10. After the last the client gets 503
	// (not-executed).
	Tries int
	// AllowEmpty makes an empty response with status 200 of a handler that returns
	// without having begun one, as net/http does. By default there is no outcome then: a
	// transaction is rolled back, any other operation is unknown, and the answer is 500
	// (response-missing). Adapters of frameworks that let the handler return before its
	// response is written cause this.
	AllowEmpty bool
	// KeepHeaders, if not nil, are the only response headers that are stored, beside
	// Content-Type, -Encoding and -Length, without which the content means
	// something else.
	KeepHeaders []string
	// DropHeaders are response headers that are not stored.
	DropHeaders []string
	// StoreSetCookie stores Set-Cookie too, so that a retry gets the session
	// of the first caller.
	StoreSetCookie bool
	// ReplayedHeader is the response header that is "true" on replays.
	// Default DefaultReplayedHeader.
	ReplayedHeader string

	// RetryAfter is what Retry-After says where asking again will tell more, about a run
	// in flight for one, if nothing is known that takes longer. In whole seconds, rounded
	// up. Default 1 s; at most 24 h.
	RetryAfter time.Duration

	// FailOpen runs requests unprotected while the store cannot be used,
	// instead of refusing them with 503: a retry may then run twice. Every
	// such request is a observe.FailedOpen and a line in ErrorLog.
	FailOpen bool
	// ProblemBase is what the types of problems begin with, an absolute URL;
	// the name of the problem follows. Default DefaultProblemBase.
	ProblemBase string
	// ErrorLog gets what goes wrong; never a key or a body. Default
	// slog.Default().
	ErrorLog *slog.Logger

	later func(status int, header http.Header) bool // NotExecuted, of operations that are run later
	usual bool                                      // NotExecuted and Failed are the defaults
}

// SingleTenant is the Options.Scope of a service whose keys are all of one
// tenant.
func SingleTenant(*http.Request) (string, error) { return "single-tenant", nil }

// NotExecuted is the default of Options.NotExecuted: it is true for the responses that
// come before an execution, 401, 403, 407, 425, 429, and 503 with Retry-After, and for
// the gRPC statuses that are 401 and 403: unauthenticated and permission denied. It is
// false for resource exhausted: servers also answer with it after the execution, when a
// response is larger than they may send. Connect maps it to 429 in unary calls: a
// service that limits the size of responses needs its own function. It is false for
// 408: timeout middleware (as of Gin and Fiber) answers with it while the handler may
// continue.
func NotExecuted(status int, header http.Header) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable:
		return header.Get("Retry-After") != ""
	}
	switch header.Get("Grpc-Status") {
	case "7", "16":
		return true
	}
	return false
}

// Failed is the default of Options.Failed: it is true for responses of 500 and
// above, for 408, and for those with a gRPC status other than 0, whatever their own is.
// The gRPC status is in the trailer, or in the header where there is nothing
// else; that of gRPC-Web and of Connect's streams is found, too.
func Failed(status int, header, trailer http.Header) bool {
	if status >= http.StatusInternalServerError || status == http.StatusRequestTimeout {
		return true
	}
	grpc := grpcStatus(header, trailer)
	return grpc != "" && grpc != "0"
}

// withDefaults returns checked options with their defaults filled in.
func (o Options) withDefaults() (Options, error) {
	if o.Scope == nil {
		return o, misuse.Errorf("stethttp: Options.Scope is required, so that no caller gets the response of another; SingleTenant is for services with one tenant")
	}
	o.Header = http.CanonicalHeaderKey(cmp.Or(o.Header, DefaultHeader))
	o.ReplayedHeader = http.CanonicalHeaderKey(cmp.Or(o.ReplayedHeader, DefaultReplayedHeader))
	for _, name := range slices.Concat([]string{o.Header, o.ReplayedHeader}, o.KeepHeaders, o.DropHeaders) {
		if !isToken(name) {
			return o, misuse.Errorf("stethttp: Options: %q cannot be the name of a header", name)
		}
	}
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	for _, method := range o.Methods {
		if !isToken(method) {
			return o, misuse.Errorf("stethttp: Options.Methods: %q cannot be a method", method)
		}
	}
	if o.MaxBody < 0 {
		return o, misuse.Errorf("stethttp: Options.MaxBody is negative: %d", o.MaxBody)
	}
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	if o.MaxWait > store.MaxWait {
		return o, misuse.Errorf("stethttp: Options.MaxWait is %v; at most %v", o.MaxWait, store.MaxWait)
	}
	o.MaxWait = cmp.Or(o.MaxWait, DefaultMaxWait)
	if o.RetryAfter < 0 || o.RetryAfter > maxRetryAfter {
		return o, misuse.Errorf("stethttp: Options.RetryAfter is %v; it must be 0 to %v", o.RetryAfter, maxRetryAfter)
	}
	o.RetryAfter = cmp.Or(o.RetryAfter, time.Second)
	if err := o.KeyPolicy.check(); err != nil {
		return o, err
	}
	o.FoldCase = o.FoldCase || o.KeyPolicy.UUID
	if o.Header == o.ReplayedHeader {
		return o, misuse.Errorf("stethttp: Options.Header and ReplayedHeader are both %q", o.Header)
	}
	if o.Tries < 0 || o.Tries > maxTries {
		return o, misuse.Errorf("stethttp: Options.Tries is %d; it must be 1 to %d", o.Tries, maxTries)
	}
	o.usual = o.NotExecuted == nil && o.Failed == nil
	if err := o.responses(); err != nil {
		return o, err
	}
	if o.Failed == nil {
		o.Failed = Failed
	}
	if !o.StoreSetCookie && slices.ContainsFunc(o.KeepHeaders, func(name string) bool { return strings.EqualFold(name, "Set-Cookie") }) {
		return o, misuse.Errorf("stethttp: Options.KeepHeaders has Set-Cookie; if it is meant to be stored, say so with StoreSetCookie")
	}
	if o.Fingerprint != nil && o.Canonicalize != nil {
		return o, misuse.Errorf("stethttp: Options.Fingerprint and Canonicalize are both set; Fingerprint makes the whole fingerprint, so canonicalize the body there (canonical.Fingerprint does)")
	}
	o.ProblemBase = cmp.Or(o.ProblemBase, DefaultProblemBase)
	if u, err := url.Parse(o.ProblemBase); err != nil || u.Scheme == "" || u.Host == "" {
		return o, misuse.Errorf("stethttp: Options.ProblemBase %q is not an absolute URL", o.ProblemBase)
	}
	return o, nil
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
