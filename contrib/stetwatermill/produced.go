package stetwatermill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

// overhead is how many bytes of stet.Policy.MaxResult an outcome takes besides its body.
const overhead = 256

// delivery is a message while it is being handled.
type delivery struct {
	m        *message.Message
	handler  string // its name; "" outside of a router
	op       stet.Op
	id       store.ID
	err      error // there is no op
	most     int   // the greatest body of an outcome
	produced []*message.Message
}

// run calls the handler with the run's context in the message, and returns the bytes to store.
func (d *delivery) run(ctx context.Context, handler func() ([]*message.Message, error)) ([]byte, error) {
	before := d.m.Context()
	d.m.SetContext(ctx)
	defer d.m.SetContext(before) // which ends later
	produced, err := handler()
	if err != nil {
		return nil, err
	}
	body, err := encode(d.handler, produced)
	if err == nil && len(body) > d.most {
		err = fmt.Errorf("they take %d bytes, and Policy.MaxResult leaves room for %d: produce less, or raise it", len(body), d.most)
	}
	if err != nil { // a second delivery would not have them
		return nil, stet.Permanent(fmt.Errorf("the messages that the handler has produced cannot be stored, so they are not published: %w", err))
	}
	d.produced = produced
	return body, nil
}

// outcome is the body of a stored outcome, as JSON.
type outcome struct {
	Watermill int        `json:"watermill"` // the version of this form, from 1
	Handler   string     `json:"handler"`
	Messages  []produced `json:"messages,omitempty"`
}

// produced is a message that a handler has returned.
type produced struct {
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  []byte            `json:"payload"`
}

const version = 1

func encode(handler string, ms []*message.Message) ([]byte, error) {
	out := outcome{Watermill: version, Handler: handler}
	for i, m := range ms {
		if m == nil {
			return nil, fmt.Errorf("message %d is nil", i)
		}
		text := utf8.ValidString(m.UUID)
		for k, v := range m.Metadata {
			text = text && utf8.ValidString(k) && utf8.ValidString(v)
		}
		if !text {
			return nil, fmt.Errorf("the UUID or the metadata of message %d is not valid UTF-8", i)
		}
		out.Messages = append(out.Messages, produced{m.UUID, m.Metadata, m.Payload})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(out)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

// replayed returns the messages of an outcome that stands. It is an error if that is the
// outcome of another handler: then this one has not run.
func (g *guard) replayed(ctx context.Context, d *delivery, stored stet.Outcome) ([]*message.Message, error) {
	id := slog.String("id", d.id.String())
	if stored.Gone {
		g.consumer.Log().WarnContext(ctx, "stetwatermill: handled before, but its outcome is no longer kept; if the messages that it produced were not published then, they are not now", id)
		return nil, nil
	}
	var out outcome
	if err := json.Unmarshal(stored.Body, &out); err != nil || out.Watermill == 0 {
		g.consumer.Log().WarnContext(ctx, "stetwatermill: executed elsewhere, or resolved by an operator; its outcome has no messages to publish", id)
		return nil, nil
	}
	switch {
	case out.Watermill != version:
		return nil, fmt.Errorf("its outcome was stored by a newer version of stetwatermill, in form %d", out.Watermill)
	case out.Handler != d.handler:
		return nil, fmt.Errorf("the outcome is that of the handler %q, not of %q, which has not run: give each handler a scope of its own, or none; if it was renamed, this message is done", out.Handler, d.handler)
	}
	ms := make([]*message.Message, 0, len(out.Messages))
	for _, p := range out.Messages {
		m := message.NewMessage(p.UUID, p.Payload)
		for k, v := range p.Metadata {
			m.Metadata.Set(k, v)
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// maxTried bounds how many operations are counted at a time.
const maxTried = 10_000

// attempts counts how often operations were tried by this process, and must be tried again.
type attempts struct {
	mu sync.Mutex
	n  map[store.ID]int
}

func (a *attempts) of(id store.ID) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[id]
}

// note notes what became of an attempt.
func (a *attempts) note(id store.ID, d stetmsg.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case d.Action != stetmsg.Retry:
		delete(a.n, id)
	case d.Reason == stetmsg.NoEffect, d.Reason == stetmsg.Unsettled, d.Reason == stetmsg.Unknown:
		if a.n == nil {
			a.n = make(map[store.ID]int)
		}
		if _, ok := a.n[id]; !ok && len(a.n) >= maxTried {
			for other := range a.n { // any: it begins anew
				delete(a.n, other)
				break
			}
		}
		a.n[id]++
	}
}
