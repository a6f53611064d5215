package ordeal

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
)

const (
	statusCharged = http.StatusCreated
	statusUnknown = http.StatusGatewayTimeout

	pairs        = 6 // keys under way at a time
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
	h        *History
	mode     Mode
	http     *http.Client
	services []string // addresses

	mu   sync.Mutex
	paid []payment
}

func newClients(h *History, mode Mode, services []string) *clients {
	return &clients{h: h, mode: mode, services: services, http: &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 2 * pairs * clientsEach, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext},
	}}
}

// payUntil makes payments until enough is closed. Some keys are used by two
// scopes at a time, and some by somebody who asks for something else.
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

func (c *clients) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.paid)
}

// askAgain asks for every payment once more, when nothing fails any longer.
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
	for _, p := range c.paid {
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
			return
		}
		pause(ctx, backoff/2+rand.N(backoff))
	}
}

// definite reports whether a client stops at this answer: a charge, a refusal,
// or an unknown that nobody is going to resolve. After a reset, 409, 500 or 503
// it sends the same again.
func (c *clients) definite(status int) bool {
	return status == statusCharged || status == statusUnknown && c.mode == Park || status/100 == 4 && status != http.StatusConflict
}

// send sends a payment once, and returns the response's status; 0 for none. Of
// the response the history has the digest.
func (c *clients) send(ctx context.Context, p payment, try int) (status int) {
	id := idOf(p.scope, p.key)
	form := url.Values{"amount": {strconv.Itoa(p.amount)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.services[rand.IntN(len(c.services))]+"/payments", strings.NewReader(form))
	if err != nil {
		panic(err) // no address of ours is like that
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", strconv.Quote(p.key))
	req.Header.Set(account, p.scope)
	req.Header.Set(operation, id)
	req.Header.Set("Retry-Count", strconv.Itoa(try))
	if try%2 == 1 {
		req.Header.Set("Prefer", "wait=1")
	}
	end := c.h.Begin(Event{Verb: verbAsk, ID: id, Scope: p.scope, Key: p.key, Fingerprint: form})
	last := Event{Kind: Unsure, Scope: p.scope, Key: p.key, Fingerprint: form}
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
	last.Status, last.Replayed = res.StatusCode, res.Header.Get("Idempotent-Replayed") == "true"
	last.Digest = digest(append([]byte(res.Status+"\n"+res.Header.Get("Content-Type")+"\n"), body...))
	if c.definite(res.StatusCode) {
		last.Kind = OK
	}
	if res.StatusCode == statusCharged {
		last.Said = new(Charge)
		if err := json.Unmarshal(body, last.Said); err != nil {
			last.Said = nil
		}
	}
	return res.StatusCode
}
