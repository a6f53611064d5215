package proxy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/intake"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
)

// consumer sends the messages of a Consume to the service.
type consumer struct {
	*Consume
	engine       *stet.Engine
	delivery     *delivery
	availability *availability
	target       string // that is requested
	host         string
	log          *slog.Logger
	counts       *messages
}

// newConsumer returns a consumer that receives nothing yet.
func (p *Proxy) newConsumer(g *generation, m *Consume, cr *checkedRoute, f *forwarder) (*consumer, error) {
	middleware, err := stethttp.New(g.engine, cr.options)
	if err != nil {
		return nil, err
	}
	return &consumer{
		Consume: m, engine: g.engine, delivery: &delivery{p, f, g.newRoute(cr), middleware, g.manner}, availability: cr.availability, log: cr.availability.log, counts: &p.messages,
		target: strings.TrimSuffix(g.upstream.EscapedPath(), "/") + m.Post, host: g.upstream.Host,
	}, nil
}

func (c *consumer) run(ctx context.Context) error {
	c.log.Info("proxy: messages are received", slog.String("from", redact(c.From)), slog.String("post", c.Post))
	first, longest := c.backoff()
	return c.source().Run(ctx, intake.Options{
		Reading: intake.Reading{Class: c.Name, Scope: cmp.Or(c.Scope, c.Name), ID: c.ID, Headers: c.Headers, MaxBody: int64(cmp.Or(c.MaxBody, defaultMaxBody))},
		Engine:  c.engine, Concurrency: cmp.Or(c.Concurrency, stetmsg.DefaultConcurrency),
		MaxAttempts: cmp.Or(c.MaxAttempts, stetmsg.DefaultMaxAttempts),
		Backoff:     func(n int) time.Duration { return timer.Backoff(n, first, longest) },
		Await:       c.availability.await, Observe: c.observe, Log: c.log, Handle: c.handle,
	})
}

func (c *consumer) observe(_ context.Context, d stetmsg.Decision) { c.counts.add(c.Name, d) }

// handle sends one message.
func (c *consumer) handle(ctx context.Context, run *stet.Lease, m intake.Message) (stet.Outcome, error) {
	own := http.Header{}
	if c.delivery.route.Settles == settlesService {
		own[HeaderClaim] = []string{run.Claim.String()}
	}
	e := &job{Method: http.MethodPost, Target: c.target, Host: c.host, Header: m.Header, Body: m.Body}
	out, err := c.delivery.send(ctx, e, own, false)
	u, again := errors.AsType[*undone](err)
	switch {
	case !again && err != nil: // then other messages wait, too
		c.availability.lost(err.Error(), 0)
		return out, err
	case !again && gateway(out.Status):
		c.availability.lost("it has answered "+strconv.Itoa(out.Status), 0)
		return out, nil
	case !again:
		c.availability.found()
		return out, nil
	case u.uncounted:
		c.availability.lost(u.why, 0)
	case out.Status == http.StatusTooManyRequests, out.Status == http.StatusServiceUnavailable: // for all messages
		c.availability.lost(u.why, u.after)
		u.uncounted = true
	default:
		c.availability.found()
	}
	return out, stetmsg.Again(err, u.again)
}

// gateway reports whether a status is of a gateway whose service fails.
func gateway(status int) bool {
	return http.StatusBadGateway <= status && status <= http.StatusGatewayTimeout
}

// MessageCount is how often consumers have made a decision about messages.
type MessageCount struct {
	Name   string         // Consume.Name
	Action stetmsg.Action // and why:
	Reason stetmsg.Reason
	Count  uint64
}

// messages counts the decisions about messages.
type messages struct {
	mu     sync.Mutex
	counts map[MessageCount]uint64 // by the fields other than Count
}

func (m *messages) add(name string, d stetmsg.Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[MessageCount{Name: name, Action: d.Action, Reason: d.Reason}]++
}

// Messages returns the decisions about messages so far, and by the names of the consumers
// whether they wait for the service.
func (p *Proxy) Messages() (counts []MessageCount, paused map[string]bool) {
	p.messages.mu.Lock()
	for key, n := range p.messages.counts {
		key.Count = n
		counts = append(counts, key)
	}
	p.messages.mu.Unlock()
	paused = map[string]bool{}
	for _, c := range p.current().consumers {
		paused[c.Name] = c.availability.paused()
	}
	return counts, paused
}

// consumes adds the consumers to the parts of a generation, if Options.Parts has them.
func (p *Proxy) consumes(g *generation, checked *checked, f *forwarder) error {
	if p.o.Parts&Consumers == 0 {
		return nil
	}
	for i := range checked.consume {
		c, err := p.newConsumer(g, &g.config.Consume[i], &checked.consume[i], f)
		if err != nil {
			return g.config.place(err, "consume", i)
		}
		g.consumers = append(g.consumers, c)
		g.parts = append(g.parts, part{"consume " + c.Name, c.run})
	}
	return nil
}
