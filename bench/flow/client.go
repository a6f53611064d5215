package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const order = `{"item":1,"text":"a book, in two volumes, to be sent to the usual address"}`

// client sends requests over as many connections as are needed.
type client struct {
	url       string
	transport *http.Transport
	http      *http.Client
}

func newClient(url string, connections int) *client {
	t := &http.Transport{MaxIdleConnsPerHost: connections}
	return &client{url: url, transport: t, http: &http.Client{Transport: t}}
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// answered is the error of a response that a client should not get.
type answered struct {
	status int
	text   string
}

// Error implements error.
func (a *answered) Error() string { return a.text }

// later reports whether an error says to come again: 503, or 504 of a status, where the store
// was too slow for instance, or a connection that was closed.
func later(err error) bool {
	var wrong *answered
	return !errors.As(err, &wrong) || wrong.status == http.StatusServiceUnavailable || wrong.status == http.StatusGatewayTimeout && strings.Contains(wrong.text, "status-unavailable")
}

func unexpected(res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
	return &answered{res.StatusCode, fmt.Sprintf("%s %s was answered %d: %s", res.Request.Method, res.Request.URL.Path, res.StatusCode, b)}
}

func (c *client) send(ctx context.Context, method, path string, header ...string) (*http.Response, error) {
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(order)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.http.Do(req)
}

func done(res *http.Response) {
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}

// poll orders, and waits for the outcome; told is false if the answer is that there is
// none yet.
func (c *client) poll(ctx context.Context, key string) (told bool, err error) {
	res, err := c.send(ctx, http.MethodPost, "/orders", "Idempotency-Key", key, "Prefer", "wait="+fmt.Sprint(int(longest.Seconds())))
	if err != nil {
		return false, err
	}
	defer done(res)
	switch res.StatusCode {
	case http.StatusCreated, http.StatusOK:
		return true, nil
	case http.StatusAccepted:
		return false, nil
	default:
		return false, unexpected(res)
	}
}

// accept orders, and returns where the state is.
func (c *client) accept(ctx context.Context, key string) (location string, err error) {
	res, err := c.send(ctx, http.MethodPost, "/orders", "Idempotency-Key", key, "Prefer", "respond-async")
	if err != nil {
		return "", err
	}
	defer done(res)
	location = res.Header.Get("Location")
	if res.StatusCode != http.StatusAccepted || location == "" {
		return "", unexpected(res)
	}
	return location, nil
}

// watch reads the events of an operation; told says that there was the one of its end.
// began is called with the first.
func (c *client) watch(ctx context.Context, location string, began func()) (told bool, err error) {
	res, err := c.send(ctx, http.MethodGet, location, "Accept", "text/event-stream")
	if err != nil {
		return false, err
	}
	defer done(res)
	if res.StatusCode != http.StatusOK {
		return false, unexpected(res)
	}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		switch event, _ := strings.CutPrefix(lines.Text(), "event: "); event {
		case "end":
			return true, nil
		case "status":
			began()
		}
	}
	return false, nil
}

// percentile is one of durations in ascending order.
func percentile(sorted []time.Duration, p int) time.Duration { return sorted[len(sorted)*p/100] }
