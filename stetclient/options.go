package stetclient

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Defaults and limits of Options.
const (
	// DefaultMaxBody is Options.MaxBody when that is 0, in bytes.
	DefaultMaxBody = 1 << 20
	// DefaultMaxResponse is Options.MaxResponse when that is 0, in bytes.
	DefaultMaxResponse = 1 << 20
	// DefaultMaxAge is Options.MaxAge when that is 0.
	DefaultMaxAge = 23 * time.Hour
	// DefaultHeaderTimeout is how long the RoundTripper that New makes, when
	// it is given none, waits for the header of a response.
	DefaultHeaderTimeout = 30 * time.Second

	maxKey   = 255  // bytes, which stet and most services accept
	maxField = 4096 // bytes of a quoted key, parameters included
)

// Options configure a Transport. The zero value is usable.
type Options struct {
	// Policy says how often and how fast attempts are made.
	Policy Policy
	// Budget bounds the retries that go to one host.
	Budget Budget
	// Service says how the service takes keys and marks replays.
	Service Service

	// Methods are those of the requests that get a key. Requests with
	// others pass through, once, unless they have a key or an intent.
	// Default POST and PATCH.
	Methods []string
	// Skip passes a request through, once and as it is, if it returns true.
	Skip func(*http.Request) bool

	// MaxBody bounds, in bytes, the request bodies that are held in memory
	// because the request has no GetBody. A larger one is sent once; with a
	// journal, or where Service.PutKey is set, it is refused. Default
	// DefaultMaxBody.
	MaxBody int64
	// MaxResponse bounds, in bytes, how much of a response is read before it is
	// returned; a response that breaks off within it is asked for again. The caller
	// reads the rest of a larger one, and gets an *Error if that breaks off. Default
	// DefaultMaxResponse; negative: responses are returned when their header is there,
	// as text/event-stream always is.
	MaxResponse int

	// Breaker, if set, is asked before each attempt. If it refuses, nothing is sent and
	// the call ends with ReasonBreaker. Otherwise done is called once: with an error
	// after an attempt without a response (context.Canceled if the caller left), a 429
	// or a 5xx, and with nil otherwise.
	Breaker func(*http.Request) (done func(error), err error)
	// Observe, if set, is called after each attempt, in the goroutine that made it. It
	// must not block.
	Observe func(context.Context, Event)

	// Journal, if set, keeps each operation from before its first byte is
	// sent until it has an outcome; see Transport.Resume.
	Journal Journal
	// SecretHeaders are request headers that the journal does not keep, next
	// to Authorization, Proxy-Authorization and Cookie, which it never does;
	// see ResumeOptions.Prepare.
	SecretHeaders []string
	// MaxAge bounds the age of an intent that is sent again. It must be shorter than the
	// service keeps keys: after that, a retry would be a second execution. Default
	// DefaultMaxAge, which suits services that keep them for a day.
	MaxAge time.Duration
}

// Event is one attempt, or, with Err, what the journal could not note after it.
type Event struct {
	Host      string
	Intent    string // its name; "" without WithIntent
	Attempt   int    // 1 for the first of the call
	Status    int    // of the response; 0 without one
	Err       error  // of an attempt without a response, or of the journal
	Execution stet.Execution
	Retry     bool          // another attempt may help
	After     time.Duration // Retry-After
}

func (o Options) withDefaults() (Options, error) {
	var err error
	if o.Policy, err = o.Policy.withDefaults(); err != nil {
		return o, err
	}
	if o.Budget, err = o.Budget.withDefaults(); err != nil {
		return o, err
	}
	s := &o.Service
	s.Header = http.CanonicalHeaderKey(cmp.Or(s.Header, DefaultHeader))
	s.ReplayedHeader = http.CanonicalHeaderKey(cmp.Or(s.ReplayedHeader, DefaultReplayedHeader))
	if !isToken(s.Header) || !isToken(s.ReplayedHeader) {
		return o, misuse.Errorf("stetclient: Options.Service: %q or %q cannot be the name of a header", s.Header, s.ReplayedHeader)
	}
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	o.Methods = slices.Clone(o.Methods)
	for _, m := range o.Methods {
		if !isToken(m) {
			return o, misuse.Errorf("stetclient: Options.Methods: %q cannot be a method", m)
		}
	}
	if o.MaxBody < 0 || o.MaxAge < 0 {
		return o, misuse.Errorf("stetclient: Options.MaxBody (%d) and MaxAge (%v) must not be negative", o.MaxBody, o.MaxAge)
	}
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.MaxAge = cmp.Or(o.MaxAge, DefaultMaxAge)
	o.MaxResponse = cmp.Or(o.MaxResponse, DefaultMaxResponse)
	return o, nil
}

// isToken reports whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

type keyOf struct{}

// WithKey returns a context whose requests use key, 1 to 255 bytes of visible ASCII,
// instead of one that the Transport makes. It is for callers that keep their keys
// themselves, or derive them with stet.DeriveKey. Use one context for one operation.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOf{}, key)
}
