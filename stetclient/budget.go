package stetclient

import (
	"cmp"
	"math"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/misuse"
)

const (
	defaultBurst     = 20
	defaultRatio     = 0.2
	defaultPerSecond = 0.5
	maxHosts         = 1024 // whose budgets are kept
)

// Budget bounds the retries that go to one host, over all calls, so that a service in
// trouble is not overloaded: a bucket of tokens, of which each retry takes one. A retry
// of a 409 takes none, as the service is well. A call for whose retry there is no token
// ends with ReasonBudget. Resume takes a token for each request, and puts it back when
// the request leads to an outcome.
type Budget struct {
	// Burst is how many tokens a bucket holds; it begins full. Default 20;
	// negative: no budget, retries are not bounded.
	Burst float64
	// Ratio is how many tokens come back with each first attempt. Default
	// 0.2: retries are at most a fifth of the load in the long run.
	Ratio float64
	// PerSecond is how many tokens come back with each second, so that a
	// client with little to do can retry too. Default 0.5.
	PerSecond float64
}

func (b Budget) withDefaults() (Budget, error) {
	if b.Ratio < 0 || b.PerSecond < 0 || math.IsNaN(b.Burst+b.Ratio+b.PerSecond) || b.Burst > 0 && b.Burst < 1 {
		return b, misuse.Errorf("stetclient: Options.Budget: Ratio (%v) and PerSecond (%v) must not be negative, and Burst (%v) must be 1 or more, or negative for no budget", b.Ratio, b.PerSecond, b.Burst)
	}
	b.Burst, b.Ratio, b.PerSecond = cmp.Or(b.Burst, defaultBurst), cmp.Or(b.Ratio, defaultRatio), cmp.Or(b.PerSecond, defaultPerSecond)
	return b, nil
}

// budgets are the buckets of all hosts.
type budgets struct {
	Budget
	mu    sync.Mutex
	hosts map[string]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time // when tokens was right
}

// bucket returns the host's bucket as it is now. The caller holds b.mu.
func (b *budgets) bucket(host string, now time.Time) *bucket {
	k, ok := b.hosts[host]
	if !ok {
		if b.hosts == nil {
			b.hosts = make(map[string]*bucket)
		}
		if len(b.hosts) >= maxHosts {
			b.evict(now)
		}
		k = &bucket{tokens: b.Burst, at: now}
		b.hosts[host] = k
	}
	b.refill(k, now)
	return k
}

func (b *budgets) refill(k *bucket, now time.Time) {
	if gone := now.Sub(k.at); gone > 0 {
		k.tokens = min(b.Burst, k.tokens+gone.Seconds()*b.PerSecond)
		k.at = now
	}
}

// evict makes room: full buckets are as good as new ones. If none is, any goes.
func (b *budgets) evict(now time.Time) {
	for host, k := range b.hosts {
		if b.refill(k, now); k.tokens >= b.Burst {
			delete(b.hosts, host)
		}
	}
	for host := range b.hosts {
		if len(b.hosts) < maxHosts {
			return
		}
		delete(b.hosts, host)
	}
}

// earn gives tokens back: for a first attempt Ratio, for what was taken and led
// to an outcome 1. A host that was never short has no bucket, and costs a
// look-up.
func (b *budgets) earn(host string, tokens float64) {
	if b.Burst < 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if k, ok := b.hosts[host]; ok {
		k.tokens = min(b.Burst, k.tokens+tokens)
	}
}

// spend takes a token for a retry, if there is one.
func (b *budgets) spend(host string, now time.Time) bool {
	if b.Burst < 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.bucket(host, now)
	if k.tokens < 1 {
		return false
	}
	k.tokens--
	return true
}
