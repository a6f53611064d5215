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
	// Scope returns the owner of the key: a tenant, a principal, an API account, as
	// authentication has established it. 1 to store.MaxScope bytes. If it returns "", the
	// request is refused with 403 (scope-missing); after an error with 500 (scope-failed).
	// Neither executes anything. Use SingleTenant for a service with one tenant.
	Scope func(*http.Request) (string, error)
	// Class returns the name of a policy in stet.Options.Classes. Default "", the
	// policy without a class.
	Class func(*http.Request) string
	// Name returns a name of the operation for people and verifiers (stet.Op.Name). It is
	// stored unencrypted, and shortened by store.LabelText. Default: the method and the
	// pattern of http.ServeMux ("POST /v1/payments/{id}"), or the method and the path if
	// there is none. If your paths contain secrets, set Name.
	Name func(*http.Request) string
	// Ref returns the service's own reference (stet.Op.Ref), such as an order ID. It is
	// stored, and shortened by store.LabelText. Default: none.
	Ref func(*http.Request) string

	// Header is the request header with the key. Default DefaultHeader.
	Header string
	// KeyPolicy has further rules for keys. Default: every key is accepted.
	KeyPolicy KeyPolicy
	// Optional passes requests without a key to the handler, unprotected. By default they
	// are refused with 400 (key-missing).
	Optional bool
	// Methods are the protected methods, in upper or lower case. Requests with other
	// methods pass unprotected, even with a key. Default POST and PATCH.
	Methods []string
	// Skip passes a request unprotected if it returns true, for example a protocol upgrade.
	Skip func(*http.Request) bool

	// MaxBody is the limit of a request body in bytes. A larger one is refused with 413
	// before anything is executed. Default DefaultMaxBody.
	MaxBody int64
	// MaxWait bounds how long a duplicate waits with "Prefer: wait=N" (RFC 7240) for a
	// running operation, and a request of an Async for its job. A duplicate with a body above
	// 64 KiB does not wait. Default DefaultMaxWait; at most store.MaxWait; negative: the
	// preference is ignored. The WriteTimeout of a server must be longer.
	MaxWait time.Duration
	// Canonicalize returns the form of a body that goes into the fingerprint, so that
	// equivalent bodies match. mediaType is in lower case, or "". body is not empty; do not
	// change or retain it. After an error the raw bytes are used. Default: the raw bytes, or
	// the parts of a multipart body.
	Canonicalize func(mediaType string, body []byte) ([]byte, error)
	// Fingerprint replaces the whole fingerprint: use it if an operation can also arrive by
	// messages, stet.Do or RPC, with the same function there (docs/adapters.md). Nothing
	// else of the request is compared, not even method and path; therefore begin it with a
	// name, as in stet.NewFingerprint([]byte("order"), body) or canonical.Fingerprint. Do
	// not change or retain body, which may be empty. An error refuses the request with 400
	// (body-invalid) and is logged, the zero Fingerprint with 500 (misconfigured). Neither
	// executes anything. It excludes Canonicalize. Default: method, request target, content
	// type, content coding and body.
	Fingerprint func(r *http.Request, body []byte) (store.Fingerprint, error)

	// Responses selects the responses that are stored: StoreOutcomes, StoreAll or
	// StoreExecuted. Default StoreOutcomes.
	Responses Responses
	// NotExecuted reports that a response says "nothing was executed". It is sent but not
	// stored, and a retry runs again. header includes the trailer. Default:
	// Responses.NotExecuted, which is the function NotExecuted for StoreOutcomes.
	NotExecuted func(status int, header http.Header) bool
	// Failed reports that any other response is a failure. In a transaction a failure is
	// rolled back, and a retry runs again. Otherwise it is stored and replayed. trailer
	// includes the fields that RPC protocols write at the end of the content. Responses can
	// store it in both cases. Default: the function Failed.
	Failed func(status int, header, trailer http.Header) bool
	// RetryAfter is the Retry-After of refusals that a later request may not get, such as
	// in flight, unless more is known. Rounded up to seconds. Default 1 s; at most 24 h.
	RetryAfter time.Duration

	// FailOpen runs requests unprotected while the store is unavailable, instead of refusing
	// them with 503. A retry may then run twice. Every such request is logged, and is an
	// observe.FailedOpen.
	FailOpen bool
	// ErrorLog receives errors, never keys or bodies. Default slog.Default().
	ErrorLog *slog.Logger

	Advanced
}

// Advanced has options that few services need.
type Advanced struct {
	// RefPointer is a JSON pointer (RFC 6901) to the reference, a text or number in the
	// content of a request, if Ref returns none. A reference that is too long or not
	// printable is left out, and logged. Default: none.
	RefPointer string
	// Tries is for operations under stet.Policy.Outside: how often the handler is called for
	// one request if the service returns 500 or above without Retry-After, or no response,
	// and has not settled. After the last one the client gets 503 (not-executed). Default 1;
	// at most 10.
	Tries int
	// AllowEmpty accepts a handler that returns without a response as an empty 200, as
	// net/http does. By default a transaction is then rolled back, any other operation is
	// unknown, and the client gets 500 (response-missing): adapters of frameworks that let
	// the handler return before its response is written have the same symptom.
	AllowEmpty bool
	// KeepHeaders, if not nil, are the only response headers that are stored, beside
	// Content-Type, Content-Encoding and Content-Length.
	KeepHeaders []string
	// DropHeaders are response headers that are not stored.
	DropHeaders []string
	// StoreSetCookie also stores Set-Cookie, so that a retry gets the session of the first
	// caller.
	StoreSetCookie bool
	// ReplayedHeader is the response header that is "true" on replays. Default
	// DefaultReplayedHeader.
	ReplayedHeader string
	// ProblemBase is the prefix of problem types, an absolute URL; the name of the problem
	// follows. Default DefaultProblemBase.
	ProblemBase string
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

// Failed is the default of Options.Failed: it is true for responses of 500 and above, for 408,
// and for a gRPC status other than 0: in the trailer, in the header, or, for gRPC-Web and
// Connect's streams, at the end of the content.
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
	o.KeyPolicy.FoldCase = o.KeyPolicy.FoldCase || o.KeyPolicy.UUID
	if o.Header == o.ReplayedHeader {
		return o, misuse.Errorf("stethttp: Options.Header and ReplayedHeader are both %q", o.Header)
	}
	if o.Tries < 0 || o.Tries > maxTries {
		return o, misuse.Errorf("stethttp: Options.Tries is %d; it must be 1 to %d", o.Tries, maxTries)
	}
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
