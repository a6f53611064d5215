package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
)

const (
	defaultSource = "stet"

	formatPlain = "plain"

	maxSendTimeout = 5 * time.Minute

	// hookCalls is how many requests of one target are in flight at a time.
	hookCalls = 16
	// maxHookAnswer is how much of a response is read so that its connection can be reused.
	maxHookAnswer = 64 << 10
)

// hook sends messages by HTTP, each in a request of its own.
type hook struct {
	url     string
	plain   bool
	source  string
	headers http.Header
	timeout time.Duration
	client  *http.Client

	ctx    context.Context // of requests
	cancel context.CancelFunc
	slots  chan struct{} // of requests in flight
	active sync.WaitGroup

	mu   sync.Mutex
	busy map[string]chan struct{} // lanes with a request in flight; closed at its end
}

// The fields of requests in the plain format; the ID is in stetmsg.IDHeader.
const (
	hookTo  = "Message-To"
	hookKey = "Message-Key"
)

// hook returns the sender of a target of HTTP.
func (t *Target) hook(r *Relaying) (sender, error) {
	if d := time.Duration(t.Timeout); d > maxSendTimeout {
		return nil, at("timeout", "%v is longer than %v", d, maxSendTimeout)
	}
	if u, err := url.Parse(t.By); err != nil || u.Host == "" || u.Fragment != "" {
		return nil, at("by", "%q is no URL with a host and without a fragment", redact(t.By))
	}
	h := &hook{url: t.By, plain: t.Format == formatPlain, source: cmp.Or(r.Source, defaultSource), headers: http.Header{}, timeout: cmp.Or(time.Duration(t.Timeout), DefaultSendTimeout)}
	for name, value := range t.Headers {
		switch {
		case !sendable(name, value):
			return nil, at("headers", "%q, or its value, cannot be sent in HTTP", name)
		case h.own(name):
			return nil, at("headers", "%s is set for each message", name)
		case h.headers.Get(name) != "":
			return nil, at("headers", "%s is there twice", name)
		}
		h.headers.Set(name, value)
	}
	transport := newTransport(Upstream{IdleTimeout: Duration(30 * time.Second), MaxIdle: hookCalls})
	h.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.slots, h.busy = make(chan struct{}, hookCalls), make(map[string]chan struct{})
	return h, nil
}

func (h *hook) close() {
	h.cancel()
	h.active.Wait()
	h.client.CloseIdleConnections()
}

// own reports whether a field describes the request, its connection or the message.
func (h *hook) own(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case http.CanonicalHeaderKey(stetmsg.IDHeader), stethttp.DefaultHeader, hookTo, hookKey:
		return true
	}
	return strings.HasPrefix(strings.ToLower(name), "ce-") || ofProxy(name) || ofConnection(name)
}

// sendable reports whether HTTP can send a field (RFC 9110, sections 5.1 and 5.5).
func sendable(name, value string) bool {
	return isToken(name) && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// check implements sender.
func (h *hook) check(m stet.Message) error {
	for name, value := range m.Header {
		if !sendable(name, value) || h.own(name) {
			return fmt.Errorf("the field %.100q of its header cannot be sent by HTTP, or is set by the relay", name)
		}
	}
	return nil
}

// lane returns the name of the sequence of a message.
func lane(m stet.Message) string {
	if m.Key == "" {
		return "id " + m.ID // in order with no other
	}
	return "key " + m.Key
}

// publish implements sender. Messages with one key are sent one after the other, and none
// after a message that failed; others at the same time.
func (h *hook) publish(ctx context.Context, messages []stet.Message, results *publishResults) error {
	lanes := make(map[string][]stet.Message)
	for _, m := range messages {
		lanes[lane(m)] = append(lanes[lane(m)], m)
	}
	work := make(chan []stet.Message, len(lanes))
	for lane := range maps.Values(lanes) {
		work <- lane
	}
	close(work)
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	for range min(hookCalls, len(lanes)) {
		wg.Go(func() {
			for lane := range work {
				for _, m := range lane {
					if err := h.send(ctx, m, results); err != nil {
						mu.Lock()
						failed = err // the last stands for the others
						mu.Unlock()
						break
					}
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// send sends one message, and returns nil if the target took it. If ctx ends first, the request
// continues until its timeout, so that the message is not sent twice.
func (h *hook) send(ctx context.Context, m stet.Message, results *publishResults) error {
	end, err := h.enter(ctx, lane(m))
	if err != nil {
		return err
	}
	if results.has(m.ID) { // since we waited
		end()
		return nil
	}
	ended := make(chan error, 1)
	h.active.Go(func() {
		defer end()
		err := h.post(m)
		if err == nil {
			results.note(m.ID)
		}
		ended <- err
	})
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return errSlow
	}
}

var errSlow = errors.New("it has not answered yet")

// enter waits until no other request is in flight in a lane, and there is room for a request.
func (h *hook) enter(ctx context.Context, lane string) (end func(), err error) {
	for {
		h.mu.Lock()
		before := h.busy[lane]
		mine := make(chan struct{})
		if before == nil {
			h.busy[lane] = mine
		}
		h.mu.Unlock()
		if before != nil {
			select {
			case <-before:
				continue
			case <-ctx.Done():
				return nil, errSlow
			}
		}
		leave := func() {
			h.mu.Lock()
			delete(h.busy, lane)
			h.mu.Unlock()
			close(mine)
		}
		select {
		case h.slots <- struct{}{}:
			return func() { <-h.slots; leave() }, nil
		case <-ctx.Done():
			leave()
			return nil, errSlow
		}
	}
}

// post sends one message.
func (h *hook) post(m stet.Message) error {
	ctx, cancel := context.WithTimeout(h.ctx, h.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, strings.NewReader(string(m.Body)))
	if err != nil {
		return errors.New("the URL cannot be used")
	}
	for name, value := range m.Header {
		req.Header.Set(name, value)
	}
	maps.Copy(req.Header, h.headers)
	req.Header.Set(stetmsg.IDHeader, m.ID)
	req.Header.Set(stethttp.DefaultHeader, m.ID)
	if h.plain {
		req.Header.Set(hookTo, encoded(m.To))
		if m.Key != "" {
			req.Header.Set(hookKey, encoded(m.Key))
		}
	} else {
		for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": m.ID, "Ce-Source": h.source, "Ce-Type": m.To, "Ce-Partitionkey": m.Key} {
			if value != "" {
				req.Header.Set(name, encoded(value))
			}
		}
	}
	res, err := h.client.Do(req)
	if err != nil {
		return errors.New("the request: " + logError(err))
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, maxHookAnswer)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("it responded %d; only 2xx accepts a message", res.StatusCode)
	}
	return nil
}

// encoded encodes an attribute of a CloudEvent (binding for HTTP, section 3.1.3.2): visible ASCII
// is unchanged, other bytes are percent-encoded.
func encoded(text string) string {
	var s strings.Builder
	for _, b := range []byte(text) {
		if b > ' ' && b <= '~' && b != '"' && b != '%' {
			s.WriteByte(b)
		} else {
			fmt.Fprintf(&s, "%%%02X", b)
		}
	}
	return s.String()
}
