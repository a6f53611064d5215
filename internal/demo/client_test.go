package demo

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// patient returns the randomness of a client that does not hang up.
func patient() *rand.Rand {
	for seed := uint64(0); ; seed++ {
		if rand.New(rand.NewPCG(seed, 0)).IntN(5) >= 2 {
			return rand.New(rand.NewPCG(seed, 0))
		}
	}
}

// scripted answers the n-th request with its n-th step and the last one from
// then on, and fails the test if a request does not say the same as the first.
func scripted(t *testing.T, in *intent, steps ...http.HandlerFunc) (c *crowd, seen func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != string(in.body) || r.Header.Get("Idempotency-Key") != `"`+in.key+`"` || r.ContentLength != int64(len(body)) {
			t.Errorf("the client sent %q with key %q", body, r.Header.Get("Idempotency-Key"))
		}
		mu.Lock()
		step := steps[min(n, len(steps)-1)]
		n++
		mu.Unlock()
		step(w, r)
	}))
	t.Cleanup(srv.Close)
	c = &crowd{url: srv.URL, http: newHTTPClient(), changed: func() {}}
	t.Cleanup(c.http.CloseIdleConnections)
	return c, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func cutOff(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func halfAnAnswer(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "half")
}

func TestClientGoesOnWithTheSameKeyUntilADefiniteAnswer(t *testing.T) {
	in := newIntent(payment{"order-1", 4200})
	inFlight := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600") // the demonstration's clock is short
		w.WriteHeader(http.StatusConflict)
	}
	done := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(replayed, "true")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "done")
	}
	steps := []http.HandlerFunc{inFlight, cutOff, status(500), status(503), status(504), status(429), halfAnAnswer, done}
	c, seen := scripted(t, in, steps...)
	c.pay(t.Context(), in, patient())
	if got := int(c.attempts.Load()); got != len(steps) || seen() != got {
		t.Errorf("%d requests counted, %d seen; want %d: nothing may be sent that is not counted", got, seen(), len(steps))
	}
	if len(in.told.acks) != 1 || in.told.acks["done"] != 1 || in.told.refused || in.told.parked {
		t.Errorf("noted %+v", in.told)
	}
	if c.conflicts.Load() != 1 || c.serverError.Load() != 3 || c.broken.Load() != 2 || c.replayed.Load() != 1 || c.finished.Load() != 1 || c.inFlight.Load() != 0 {
		t.Errorf("counted %d conflicts, %d server errors, %d broken, %d replayed, %d finished, %d in flight", c.conflicts.Load(),
			c.serverError.Load(), c.broken.Load(), c.replayed.Load(), c.finished.Load(), c.inFlight.Load())
	}
}

func TestClientStopsWhenItIsRefused(t *testing.T) {
	for _, code := range []int{400, 404, 410, 422} {
		in := newIntent(payment{"order-1", 4200})
		c, seen := scripted(t, in, status(code))
		c.pay(t.Context(), in, patient())
		if seen() != 1 || !in.told.refused || len(in.told.acks) != 0 {
			t.Errorf("%d: %d requests, noted %+v", code, seen(), in.told)
		}
	}
}

func TestClientThatIsNeverAnsweredEndsWithTheStormAndKnowsTheLastWord(t *testing.T) {
	for _, tc := range []struct {
		code   int
		parked bool
	}{{504, true}, {409, false}} {
		in := newIntent(payment{"order-1", 4200})
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		c, _ := scripted(t, in, status(tc.code))
		c.changed = func() {
			if n++; n == 4 { // with the fourth request in flight
				cancel()
			}
		}
		c.pay(ctx, in, patient())
		cancel()
		if len(in.told.acks) != 0 || in.told.refused {
			t.Errorf("%d: noted %+v", tc.code, in.told)
		}
		if in.told.parked != tc.parked { // the fourth got no word
			t.Errorf("%d: parked is %v, want %v", tc.code, in.told.parked, tc.parked)
		}
	}
}

func TestImpatientClientHangsUpAndComesBack(t *testing.T) {
	in := newIntent(payment{"order-1", 4200})
	hold := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	c, _ := scripted(t, in, hold, status(201))
	if definite, _, _ := c.send(t.Context(), in, 10*time.Millisecond); definite || c.hungUp.Load() != 1 {
		t.Fatalf("definite %v, %d hung up", definite, c.hungUp.Load())
	}
	if definite, _, _ := c.send(t.Context(), in, patience); !definite || len(in.told.acks) != 1 {
		t.Errorf("definite %v, noted %+v", definite, in.told)
	}
}
