package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
)

// sender sends messages to one target.
type sender interface {
	// publish sends messages, in order if the target keeps an order, and records the confirmed
	// ones, also after ctx has ended and it has returned.
	publish(ctx context.Context, messages []stet.Message, results *publishResults) error
	// check refuses messages that the target never takes.
	check(m stet.Message) error
	close()
}

// sending is a target with its sender.
type sending struct {
	Target
	sender
	pattern *regexp.Regexp // of destinations
	say     seldom
	failed  atomic.Uint64 // times that messages were not sent
}

// targets are the targets of the relay.
type targets struct {
	all    []*sending
	log    *slog.Logger
	logged atomic.Int64 // errors since it was set to 0

	unrouted seldom
	results  publishResults
}

// publishResults has the IDs of messages that a target has confirmed, until the store has
// recorded that all messages of their operation were sent.
type publishResults struct {
	mu   sync.Mutex
	sent map[string]time.Time
}

// maxSent is how many confirmed messages are remembered, for sentFor. A message that is not
// remembered is sent again, as after a restart.
const (
	maxSent = 10000
	sentFor = 10 * time.Minute
)

// newTargets does not connect. r can be nil.
func newTargets(r *Relaying, log *slog.Logger) (*targets, error) {
	ts := &targets{log: log, results: publishResults{sent: make(map[string]time.Time)}}
	if r == nil {
		return ts, nil
	}
	for i := range r.Targets {
		s, err := r.Targets[i].sender(r)
		if err != nil {
			ts.close()
			return nil, err
		}
		pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(strings.ToValidUTF8(cmp.Or(r.Targets[i].To, "*"), "")), `\*`, ".*") + "$"
		ts.all = append(ts.all, &sending{Target: r.Targets[i], sender: s, pattern: regexp.MustCompile(pattern)})
	}
	return ts, nil
}

func (ts *targets) close() {
	for _, s := range ts.all {
		s.close()
	}
}

// of returns the target of a destination, nil if there is none. A pattern does not match
// RefusedDestination.
func (ts *targets) of(to string) *sending {
	for _, s := range ts.all {
		if s.To == to || to != RefusedDestination && s.pattern.MatchString(to) {
			return s
		}
	}
	return nil
}

// check is a stet.Options.CheckMessage. A message without a target is stored until there is one.
func (ts *targets) check(m stet.Message) error {
	if s := ts.of(m.To); s != nil && m.To != RefusedDestination {
		return s.check(m)
	}
	return nil
}

// publish is a stetmsg.Publish. Targets do not depend on each other. A confirmed message is not
// sent again while others of its operation are.
func (ts *targets) publish(ctx context.Context, messages []stet.Message) error {
	var errs []error
	by := make(map[*sending][]stet.Message)
	var order []*sending
	for _, m := range messages {
		s := ts.of(m.To)
		switch {
		case s == nil:
			errs = append(errs, fmt.Errorf("proxy: relay has no target for messages to %.100q", m.To))
			ts.logged.Add(1)
			if ts.unrouted.due() {
				ts.log.Error("proxy: messages wait for a destination without a target in relay; they are sent when the configuration has one", slog.String("to", fmt.Sprintf("%.100q", m.To)))
			}
		case ts.results.has(m.ID):
		case by[s] == nil:
			order = append(order, s)
			fallthrough
		default:
			by[s] = append(by[s], m)
		}
	}
	failed := make([]error, len(order))
	var wg sync.WaitGroup
	for i, s := range order {
		wg.Go(func() { failed[i] = ts.to(ctx, s, by[s]) })
	}
	wg.Wait()
	err := errors.Join(append(errs, failed...)...)
	if err == nil {
		ts.results.forget(messages)
	}
	return err
}

// to sends messages to one target.
func (ts *targets) to(ctx context.Context, s *sending, messages []stet.Message) error {
	err := s.publish(ctx, messages, &ts.results)
	if err != nil && context.Cause(ctx) == context.Canceled { //nolint:errorlint // the process ends
		return err
	}
	if err != nil {
		ts.logged.Add(1)
		if n := s.failed.Add(1); s.say.due() {
			ts.log.Error("proxy: a target does not accept messages; they stay in the store and are sent again until it does",
				slog.String("to", cmp.Or(s.To, "*")), slog.String("by", redact(s.By)), slog.String("error", err.Error()), slog.Uint64("times", n))
		}
		return err
	}
	if n := s.failed.Swap(0); n > 0 {
		ts.log.Info("proxy: a target accepts messages again", slog.String("to", cmp.Or(s.To, "*")), slog.String("by", redact(s.By)))
	}
	return nil
}

func (b *publishResults) has(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.sent[id]
	return ok && time.Since(at) < sentFor
}

func (b *publishResults) note(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sent) >= maxSent {
		clear(b.sent)
	}
	b.sent[id] = time.Now()
}

func (b *publishResults) forget(messages []stet.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range messages {
		delete(b.sent, m.ID)
	}
}

// sender returns the sender of the target. It connects when it sends.
func (t *Target) sender(r *Relaying) (sender, error) {
	scheme, _, _ := strings.Cut(t.By, ":")
	if t.By == "" {
		return nil, at("by", "required: where do the messages go? https://hooks.example.com/events or amqp://127.0.0.1, for example")
	}
	ofHTTP := scheme == "http" || scheme == "https"
	switch {
	case !ofHTTP && t.Format != "":
		return nil, at("format", "only http and https have one")
	case !ofHTTP && len(t.Headers) > 0:
		return nil, at("headers", "only http and https have them")
	case !ofHTTP && t.Timeout != 0:
		return nil, at("timeout", "only http and https have one; brokers have as long as relay.retry leaves")
	case scheme != "amqp" && scheme != "amqps" && t.Exchange != "":
		return nil, at("exchange", "only amqp and amqps have one")
	case scheme != "nats" && scheme != "tls" && t.Credentials != "":
		return nil, at("credentials", "only nats and tls have them")
	}
	switch scheme {
	case "http", "https":
		return t.hook(r)
	case "amqp", "amqps":
		return t.amqp()
	case "nats", "tls":
		return t.jetStream()
	case "kafka", "kafkas":
		return t.kafka(r.retry())
	case "sqs+http", "sqs+https":
		return t.sqs()
	}
	return nil, at("by", "%q is no URL of http, https, amqp, amqps, nats, tls, kafka, kafkas, sqs+http or sqs+https", redact(t.By))
}
