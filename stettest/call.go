package stettest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// answer is a response, or the error instead.
type answer struct {
	status                int
	body                  string
	contentType, location string
	err                   error
}

func (a answer) ok() bool { return a.err == nil && a.status >= 200 && a.status < 300 }

// retryable reports whether a client must retry.
func (a answer) retryable() bool {
	return a.err != nil || slices.Contains([]int{409, 425, 429, 500, 502, 503}, a.status)
}

func (a answer) equal(b answer) bool {
	return a.status == b.status && a.body == b.body && a.contentType == b.contentType && a.location == b.location
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	const most = 200
	return fmt.Sprintf("%d %.*q", a.status, most, a.body)
}

// client does not retry: it has no connection that a request could find closed. It follows no redirection.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// send sends the request of operation n with a key, and waits for the response, at most for Patience.
func (c *checker) send(ctx context.Context, n int, key string) answer {
	return c.sendTo(ctx, c.base, n, key)
}

func (c *checker) sendTo(ctx context.Context, base string, n int, key string) answer {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	r := c.Request(n)
	if r == nil {
		return answer{err: fmt.Errorf("Service.Request(%d) returned nil", n)}
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return answer{err: err}
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, base+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header = r.Header.Clone()
	req.Header.Set(c.Header, key)
	res, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, string(text), res.Header.Get("Content-Type"), res.Header.Get("Location"), err}
}

// start sends a request of an operation. The channel receives its response.
func (c *checker) start(ctx context.Context, op *operation) <-chan answer {
	answered, base := make(chan answer, 1), c.base                // a killed program has another address when it is started again
	go func() { answered <- c.sendTo(ctx, base, op.n, op.key) }() // ends with its request
	return answered
}

// final retries an operation until it has a response that is no reason to retry. An operation without one is reported.
func (c *checker) final(name string, op *operation) (a answer) {
	c.t.Helper()
	pause := 20 * time.Millisecond
	for end := time.Now().Add(c.Patience); ; pause = min(2*pause, time.Second) {
		if a = c.send(c.t.Context(), op.n, op.key); !a.retryable() {
			return a
		}
		if time.Now().After(end) {
			op.told = true
			c.t.Errorf("stettest: %s: operation %d still received %v after %v of retries; want a final response", name, op.n, a, c.Patience)
			return a
		}
		time.Sleep(pause) // before the next retry
	}
}

// wait waits for a response, at most for a time.
func wait(answered <-chan answer, most time.Duration) {
	timeout := time.NewTimer(most)
	defer timeout.Stop()
	select {
	case <-answered:
	case <-timeout.C:
	}
}
