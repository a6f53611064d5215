package verify

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Counter is a service that counts what arrives, by the stamps in the bodies. It
// answers each request differently, so that an execution cannot pass for a
// replay, and takes a moment, so that requests meet.
type Counter struct {
	mu     sync.Mutex
	bodies []string
}

const (
	maxCounted = 10_000 // bodies that are kept
	moment     = 50 * time.Millisecond
)

// ServeHTTP implements http.Handler.
func (c *Counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		http.Error(w, "the body could not be read", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	if len(c.bodies) < maxCounted {
		c.bodies = append(c.bodies, string(body))
	}
	n := len(c.bodies)
	c.mu.Unlock()
	time.Sleep(moment)
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "execution "+time.Now().Format(time.RFC3339Nano)+" "+strings.Repeat("#", n%7))
}

// Runs returns how often a body with the stamp has arrived.
func (c *Counter) Runs(stamp string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.bodies {
		if strings.Contains(b, stamp) {
			n++
		}
	}
	return n
}
