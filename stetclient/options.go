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
	// DefaultHeaderTimeout is how long New's default RoundTripper waits for the header of
	// a response.
	DefaultHeaderTimeout = 30 * time.Second

	maxKey   = 255  // bytes; stet and most services accept as many
	maxField = 4096 // bytes of a quoted key, parameters included
)

// Options configure a Transport. The zero value is usable.
type Options struct {
	// Policy says how often and how fast attempts are made.
	Policy Policy
	// Service describes how the service accepts keys and marks replays.
	Service Service

	// Methods are the methods of the requests that get a key. Other requests pass through,
	// once, unless they have a key or an intent. Default POST and PATCH.
	Methods []string
	// Skip, if it returns true, passes a request through once, unchanged.
	Skip func(*http.Request) bool

	// MaxBody limits, in bytes, the request bodies that are read into memory: those without
	// GetBody, and all bodies with a journal. A larger body is refused.
	// Default DefaultMaxBody.
	MaxBody int64
	// MaxResponse limits, in bytes, how much of a response is read before it is returned.
	// If a response breaks off within it, the request is sent again. The caller reads the
	// rest of a larger one, and gets an *Error if that breaks off. Default
	// DefaultMaxResponse. If negative, responses are returned after their header, as
	// text/event-stream always is.
	MaxResponse int

	// Observe, if set, is called after each attempt, in the goroutine that made it. It
	// must not block.
	Observe func(context.Context, Event)

	// Journal, if set, stores each operation before its first byte is sent; see
	// Transport.Resume.
	Journal Journal
	// SecretHeaders are request headers that the journal does not store, in addition to
	// Authorization, Proxy-Authorization and Cookie; see ResumeOptions.Prepare.
	SecretHeaders []string
	// MaxAge limits the age of an intent that is sent again. It must be shorter than the
	// service's retention of keys: after that, a retry would execute again. Default
	// DefaultMaxAge, for services that retain keys for a day.
	MaxAge time.Duration
}

// Event is one attempt, or the error of a journal write after it.
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
// instead of a random key. It is for callers that store their keys, or derive them with
// stet.DeriveKey. Use one context for one operation.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyOf{}, key)
}
