package payments

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
)

const (
	statusCharged = http.StatusCreated
	statusUnknown = http.StatusGatewayTimeout

	pairs        = 6 // keys in progress at a time
	clientsEach  = 2 // clients that send the same payment
	firstBackoff = 4 * time.Millisecond
	maxBackoff   = 120 * time.Millisecond
	maxAnswer    = 1 << 20 // bytes of a response
)

// payment is what a customer wants done once.
type payment struct {
	scope, key string
	amount     int
}

// clients are the customers, who retry until they have a definite answer.
type clients struct {
	h        *crashtest.History
	mode     Mode
	http     *http.Client
	services []string // addresses
	answered atomic.Int64

	mu   sync.Mutex
	paid []payment
}

func newClients(h *crashtest.History, mode Mode) *clients {
	return &clients{h: h, mode: mode, http: &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 2 * pairs * clientsEach, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext},
	}}
}

// payUntil makes payments until enough is closed. Some keys are used by two
// scopes at a time, and some by a client with another request.
func (c *clients) payUntil(ctx context.Context, enough <-chan struct{}, seed uint64) {
	var all sync.WaitGroup
	for i := range pairs {
		rng := rand.New(rand.NewPCG(seed, uint64(i)+1))
		all.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-enough:
					return
				default:
					c.payOnce(ctx, stet.NewKey(), rng)
				}
			}
		})
	}
	all.Wait()
}

func (c *clients) payOnce(ctx context.Context, key string, rng *rand.Rand) {
	want := []payment{{"shop-a", key, 1 + rng.IntN(1000)}}
	if rng.IntN(2) == 0 {
		want = append(want, payment{"shop-b", key, 1 + rng.IntN(1000)})
	}
	if rng.IntN(4) == 0 {
		want = append(want, payment{"shop-a", key, 1001 + rng.IntN(1000)})
	}
	var all sync.WaitGroup
	for _, p := range want {
		c.remember(p)
		for range clientsEach {
			all.Go(func() { c.pay(ctx, p) })
		}
	}
	all.Wait()
}

func (c *clients) remember(p payment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paid = append(c.paid, p)
}

func (c *clients) all() []payment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.paid)
}

// askAgain asks for every payment again, when nothing fails any longer.
func (c *clients) askAgain(ctx context.Context) {
	var all sync.WaitGroup
	next := make(chan payment)
	for range pairs {
		all.Go(func() {
			for p := range next {
				c.pay(ctx, p)
			}
		})
	}
	for _, p := range c.all() {
		next <- p
	}
	close(next)
	all.Wait()
}

// pay sends a payment, each time to any of the services, until there is a
// definite answer.
func (c *clients) pay(ctx context.Context, p payment) {
	for try, backoff := 0, firstBackoff; ctx.Err() == nil; try, backoff = try+1, min(2*backoff, maxBackoff) {
		status := c.send(ctx, p, try)
		if c.definite(status) {
			c.answered.Add(1)
			return
		}
		_ = crash.Pause(ctx, backoff/2+rand.N(backoff))
	}
}

// definite reports whether a client stops at this answer: a charge, a refusal,
// or an unknown outcome that stays. After a reset, 409, 500 or 503
// it sends the same again.
func (c *clients) definite(status int) bool {
	return status == statusCharged || status == statusUnknown && c.mode == MarkUnknown || status/100 == 4 && status != http.StatusConflict
}

// send sends a payment once, and returns the response's status; 0 for none. Of
// the response the history has the digest.
func (c *clients) send(ctx context.Context, p payment, try int) (status int) {
	id := crashtest.OperationID(p.scope, p.key)
	form := url.Values{"amount": {strconv.Itoa(p.amount)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.services[rand.IntN(len(c.services))]+"/payments", strings.NewReader(form))
	if err != nil {
		panic(err) // no address of ours is like that
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", strconv.Quote(p.key))
	req.Header.Set(account, p.scope)
	req.Header.Set(crashtest.OperationHeader, id)
	req.Header.Set("Retry-Count", strconv.Itoa(try))
	if try%2 == 1 {
		req.Header.Set("Prefer", "wait=1")
	}
	end := c.h.Begin(crashtest.Event{Verb: crashtest.VerbRequest, ID: id, Scope: p.scope, Key: p.key, Fingerprint: form})
	last := crashtest.Event{Kind: crashtest.Unsure, Scope: p.scope, Key: p.key, Fingerprint: form}
	defer func() { end(last) }()
	res, err := c.http.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0
	}
	last.Status = res.StatusCode
	last.Digest = crashtest.Digest(append([]byte(res.Status+"\n"+res.Header.Get("Content-Type")+"\n"), body...))
	if !c.definite(res.StatusCode) {
		return res.StatusCode
	}
	last.Kind, last.Says = crashtest.OK, crashtest.Nonsense
	switch res.StatusCode {
	case statusCharged:
		last.Says, last.Said, last.Fresh = crashtest.Outcome, new(crashtest.Charge), res.Header.Get("Idempotent-Replayed") != "true"
		if err := json.Unmarshal(body, last.Said); err != nil {
			last.Said = nil
		}
	case statusUnknown:
		last.Says = crashtest.OutcomeUnknown
	case http.StatusUnprocessableEntity:
		last.Says = crashtest.Mismatched
	}
	return res.StatusCode
}
