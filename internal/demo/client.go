package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/crash"
)

// What the clients do. The demonstration's clock is short: a client that waits
// seconds elsewhere waits milliseconds here.
const (
	maxTries    = 500 // requests of one client for one payment
	patience    = 3 * time.Second
	backoffBase = 5 * time.Millisecond
	backoffCap  = 150 * time.Millisecond
	retryCap    = 60 * time.Millisecond // of Retry-After
	stagger     = 15 * time.Millisecond // between the clients of a payment
	maxAnswer   = 64 << 10              // bytes
)

// intent is one payment that its clients want to be made once, and what they
// were told.
type intent struct {
	key  string
	body []byte

	mu   sync.Mutex
	told observed
}

func newIntent(p payment) *intent {
	body, _ := json.Marshal(p) // never fails: a string and a number
	return &intent{key: stet.NewKey(), body: body, told: observed{payment: p, acks: make(map[string]int), urls: make(map[string]int)}}
}

// acknowledged reports whether any client was told that the payment was made.
func (in *intent) acknowledged() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.told.acks) > 0
}

// counts are what all clients together sent and got.
type counts struct {
	attempts, replayed, accepted, conflicts, hungUp, broken, serverError atomic.Int64
}

// crowd are the clients of a storm.
type crowd struct {
	url  string
	http *http.Client
	counts
	inFlight atomic.Int64
	finished atomic.Int64
	changed  func() // called after inFlight or finished has grown
}

// newHTTPClient never re-sends by itself: that would be an attempt that no caller
// counts. Its connections are reused until they break.
func newHTTPClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

// opaque hides from the transport that the body could be sent again.
type opaque struct{ io.Reader }

// pay is one client: it sends the payment, always with the same key, until it
// gets a definite answer, and notes what it is told. It is bounded by maxTries
// and ctx.
func (c *crowd) pay(ctx context.Context, in *intent, rng *rand.Rand) {
	defer func() {
		c.finished.Add(1)
		c.changed()
	}()
	hangUps := 0 // how often this client is impatient before it waits
	if rng.IntN(5) < 2 {
		hangUps = 1 + rng.IntN(2)
	}
	if crash.Pause(ctx, upTo(rng, stagger)) != nil {
		return
	}
	for try := range maxTries {
		wait := patience
		if try < hangUps {
			wait = 3*time.Millisecond + upTo(rng, maxLag)
		}
		definite, after, accepted := c.send(ctx, in, wait)
		if definite || accepted != "" && c.follow(ctx, in, accepted, rng) {
			return
		}
		backoff := min(backoffCap, backoffBase<<min(try, 10))
		if crash.Pause(ctx, min(after, retryCap)+upTo(rng, backoff)) != nil {
			return
		}
	}
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// send sends one request and notes its answer. If that is not definite, after
// is how long the server asks to wait, and accepted where it says what becomes of
// the payment, if it has been accepted.
func (c *crowd) send(ctx context.Context, in *intent, wait time.Duration) (definite bool, after time.Duration, accepted string) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, opaque{bytes.NewReader(in.body)})
	if err != nil {
		panic(err) // the URL is ours
	}
	req.ContentLength = int64(len(in.body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", `"`+in.key+`"`)
	c.attempts.Add(1)
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	c.changed()
	res, err := c.http.Do(req)
	if err != nil {
		c.noAnswer(err)
		return false, 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		c.noAnswer(err)
		return false, 0, ""
	}
	if at, err := res.Location(); err == nil && res.StatusCode == http.StatusAccepted {
		accepted = at.String()
	}
	return c.note(in, res, body), retryAfter(res.Header), accepted
}

func (c *crowd) noAnswer(err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		c.hungUp.Add(1)
	} else {
		c.broken.Add(1)
	}
}

// note notes an answer and reports whether it is definite.
func (c *crowd) note(in *intent, res *http.Response, body []byte) bool {
	if res.Header.Get(replayed) == "true" {
		c.replayed.Add(1)
	}
	if res.StatusCode >= 500 {
		c.serverError.Add(1)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.told.parked = res.StatusCode == http.StatusGatewayTimeout
	switch {
	case res.StatusCode == http.StatusAccepted:
		c.accepted.Add(1)
		return false
	case res.StatusCode >= 200 && res.StatusCode < 300:
		in.told.acks[string(body)]++
		return true
	case res.StatusCode == http.StatusConflict:
		c.conflicts.Add(1)
		return false
	case res.StatusCode == http.StatusRequestTimeout, res.StatusCode == http.StatusTooEarly,
		res.StatusCode == http.StatusTooManyRequests, res.StatusCode >= 500:
		return false
	default:
		in.told.refused = true
		return true
	}
}

// retryAfter returns the seconds that an answer asks to wait (RFC 9110, section
// 10.2.3; the service sends no dates).
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.ParseUint(h.Get("Retry-After"), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}
