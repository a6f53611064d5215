package demo

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/stet-go/stet/internal/crash"
)

const (
	lookPause = 20 * time.Millisecond // between looks at an operation that runs
	lookWait  = "wait=1"              // for its end, in each
)

// operation is what a status resource says.
type operation struct {
	State   string  `json:"state"`
	Outcome outcome `json:"outcome,omitzero"`
}

type outcome struct {
	Result json.RawMessage `json:"result"`
}

// follow asks what became of a payment that was accepted, until it is known. It is
// false if no service knows it.
func (c *crowd) follow(ctx context.Context, in *intent, url string, rng *rand.Rand) (definite bool) {
	in.mu.Lock()
	in.told.urls[url]++
	in.mu.Unlock()
	for range maxTries {
		status, body := c.look(ctx, url)
		if status == http.StatusNotFound {
			return false
		}
		if status == http.StatusOK && in.learn(body) {
			return true
		}
		if crash.Pause(ctx, lookPause+upTo(rng, lookPause)) != nil {
			return true
		}
	}
	return true
}

// look asks once. Without an answer the status is 0.
func (c *crowd) look(ctx context.Context, url string) (status int, body []byte) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return http.StatusNotFound, nil // no URL at all
	}
	req.Header.Set("Prefer", lookWait)
	c.attempts.Add(1)
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	c.changed()
	res, err := c.http.Do(req)
	if err != nil {
		c.noAnswer(err)
		return 0, nil
	}
	defer func() { _ = res.Body.Close() }()
	if body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer)); err != nil {
		c.noAnswer(err)
		return 0, nil
	}
	if res.StatusCode >= 500 {
		c.serverError.Add(1)
	}
	return res.StatusCode, body
}

// learn notes what a status resource says, and reports whether it has ended.
func (in *intent) learn(body []byte) bool {
	var op operation
	if json.Unmarshal(body, &op) != nil {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.told.parked = op.State == "unknown"
	switch op.State {
	case "completed":
		in.told.acks[string(op.Outcome.Result)]++
	case "failed":
		in.told.refused = true
	default:
		return false
	}
	return true
}
