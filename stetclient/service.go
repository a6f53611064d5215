package stetclient

import (
	"net/http"

	"github.com/stet-go/stet/internal/misuse"
)

// Names of headers.
const (
	// DefaultHeader is the request header that carries the key.
	DefaultHeader = "Idempotency-Key"
	// DefaultReplayedHeader is the response header that marks a replay.
	DefaultReplayedHeader = "Idempotent-Replayed"
)

// Service describes how a service accepts keys and marks replays. The zero value is for stet
// and draft-ietf-httpapi-idempotency-key-header-07. If a service has the key in the body,
// put it there yourself and use WithKey, with a derived key if there is a journal.
type Service struct {
	// Header is the request header that carries the key, X-Idempotency-Key
	// for some. Default DefaultHeader.
	Header string
	// Raw sends the key without quotes. By default it is sent as a structured field
	// String (RFC 9651), in double quotes.
	Raw bool
	// ReplayedHeader is the response header that is "true" on replays.
	// Default DefaultReplayedHeader.
	ReplayedHeader string
	// Classify, if set, is called with each response and its resolution, and returns the
	// resolution to use. It must not read the body. A 400 or a 422 is never retried.
	Classify func(*http.Response, Resolution) Resolution
}

// Stripe returns the Service of Stripe: keys without quotes, and Stripe-Should-Retry to say
// whether to retry.
func Stripe() Service {
	return Service{Raw: true, Classify: func(res *http.Response, v Resolution) Resolution {
		switch res.Header.Get("Stripe-Should-Retry") {
		case "true":
			v.Retry = true
		case "false":
			v.Retry = false
		}
		return v
	}}
}

// checkKey returns an error if the key is not 1 to 255 bytes of visible ASCII.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey {
		return misuse.Errorf("stetclient: the key has %d bytes; it must have 1 to %d", len(key), maxKey)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] >= 0x7f {
			return misuse.Errorf("stetclient: the key has a byte that is not visible ASCII")
		}
	}
	return nil
}

// classify returns the resolution of a response, and its problem document. body is the
// part of its body that was read.
func (s *Service) classify(res *http.Response, body []byte) (v Resolution, replayed bool, p *Problem) {
	replayed = res.Header.Get(s.ReplayedHeader) == "true"
	if res.StatusCode >= 400 {
		p = parseProblem(res.Header, body)
	}
	v = resolutionOf(res.StatusCode, res.Header, replayed, p)
	stands := v.stands
	if s.Classify != nil {
		v = s.Classify(res, v)
		v.Retry = v.Retry && !never(res.StatusCode)
	}
	v.stands = stands && !v.Retry
	return v, replayed, p
}
