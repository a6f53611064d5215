package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/intake"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
)

// Consume sends messages of a broker to the service. Each is acknowledged after its outcome is
// stored. A message that cannot be sent, or that the service refuses, becomes a dead letter.
type Consume struct {
	Name       string `yaml:"name"`
	From       string `yaml:"from"`
	DeadLetter string `yaml:"dead_letter"`
	Ordered    bool   `yaml:"ordered"`
	Prefetch   int    `yaml:"prefetch"`

	Queue     string `yaml:"queue"`
	QueueType string `yaml:"queue_type"`

	Stream      string `yaml:"stream"`
	Consumer    string `yaml:"consumer"`
	Credentials string `yaml:"credentials"`

	Topics []string `yaml:"topics"`
	Group  string   `yaml:"group"`

	Visibility Duration `yaml:"visibility"`

	Post      string   `yaml:"post"`
	ID        string   `yaml:"id"`
	Scope     string   `yaml:"scope"`
	Headers   []string `yaml:"headers"`
	KeyHeader string   `yaml:"key_header"`

	Concurrency int     `yaml:"concurrency"`
	MaxAttempts int     `yaml:"max_attempts"`
	Backoff     Backoff `yaml:"backoff"`

	Lease       Duration  `yaml:"lease"`
	Timeout     Duration  `yaml:"timeout"`
	Retention   Retention `yaml:"retention"`
	Stale       string    `yaml:"stale" oneof:"unknown take-over fail"`
	Verify      *Verify   `yaml:"verify"`
	Settles     string    `yaml:"settles" oneof:"proxy service"`
	NotExecuted []int     `yaml:"not_executed"`
	Unknown     []int     `yaml:"unknown"`
	MaxBody     Size      `yaml:"max_body"`
	MaxResult   Size      `yaml:"max_result"`
}

// Backoff is the wait between attempts: First, then twice as long each time, at most Longest,
// less up to half of it at random.
type Backoff struct {
	First   Duration `yaml:"first"`
	Longest Duration `yaml:"longest"`
}

const defaultMaxBody = 1 << 20

// route returns the route that messages are sent by.
func (m *Consume) route() Route {
	return Route{
		Path: m.Post, Name: m.Name, Methods: []string{http.MethodPost}, Scope: &Scope{Kind: "single-tenant"}, KeyHeader: m.KeyHeader,
		Lease: m.Lease, Timeout: m.Timeout, Retention: m.Retention, Stale: m.Stale, Verify: m.Verify, Settles: m.Settles,
		NotExecuted: m.NotExecuted, Unknown: m.Unknown, MaxResult: m.MaxResult,
	}
}

func (m *Consume) source() intake.Source {
	return intake.Source{
		URL: m.From, Queue: m.Queue, QueueType: m.QueueType, Stream: m.Stream, Consumer: m.Consumer, Credentials: m.Credentials,
		Topics: m.Topics, Group: m.Group, Visibility: time.Duration(m.Visibility), DeadLetter: m.DeadLetter, Prefetch: m.Prefetch, Ordered: m.Ordered,
	}
}

// checkConsume checks Config.Consume. names are the classes so far.
func (c *Config) checkConsume(done *checked, names map[string]bool, bad func(err error, path ...any), logger *slog.Logger) {
	for i := range c.Consume {
		m, path := &c.Consume[i], []any{"consume", i}
		for _, err := range m.check() {
			bad(err, path...)
		}
		r := m.route()
		cr, err := c.checkRoute(r, logger)
		bad(err, path...)
		cr.policy.ForgetReleased = false // the record counts the attempts
		cr.options.Failed = notDone
		if m.Name != "" && names[m.Name] {
			bad(at("name", "there are a route and a consumer, or two consumers, by the name of %s; give one another name", m.Name), path...)
		}
		names[m.Name] = true
		r.checkURLs(done.upstream, bad, path)
		done.consume = append(done.consume, cr)
	}
}

// notDone reports whether the response to a message is a failure. Only a 2xx is none.
func notDone(status int, header, trailer http.Header) bool {
	return status >= http.StatusMultipleChoices || stethttp.Failed(status, header, trailer)
}

// consumeClasses adds the classes of messages.
func (c *Config) consumeClasses(done *checked, toUpstream, elsewhere http.RoundTripper, log *slog.Logger) error {
	for i := range done.consume {
		cr := &done.consume[i]
		cr.availability = c.newAvailability(done.upstream, log.With(slog.String("consume", cr.class())))
		if cr.Verify != nil {
			v, err := c.newVerifier(&cr.Route, done.upstream, toUpstream, elsewhere)
			if err != nil {
				return err
			}
			v.refusals = true
			if v.url.Host == done.upstream.Host {
				v.troubled = func(why string) { cr.availability.lost(why, 0) }
			}
			cr.policy.Verify = v.verify
		}
		done.classes[cr.class()] = cr.policy
	}
	return nil
}

// check returns the errors of fields that a route does not have.
func (m *Consume) check() (errs []error) {
	wrong := func(field, format string, args ...any) { errs = append(errs, at(field, format, args...)) }
	if m.Name == "" {
		wrong("name", "required: the name of its operations in metrics and logs")
	}
	for _, err := range split(m.source().Check()) {
		if f, ok := errors.AsType[*intake.FieldError](err); ok {
			wrong(f.Field, "%w", f.Err)
		}
	}
	switch u, err := url.Parse(m.Post); {
	case m.Post == "":
		wrong("post", "required: the path of the service that messages are POSTed to")
	case err != nil || m.Post[0] != '/' || u.Host != "" || u.Fragment != "" || strings.ContainsFunc(m.Post, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		wrong("post", "%q is no path of the service; write a path like /events/orders", m.Post)
	}
	if err := intake.CheckID(m.ID); err != nil {
		wrong("id", "%w", err)
	}
	for i, name := range m.Headers {
		if err := handedOn(name, cmp.Or(m.KeyHeader, stethttp.DefaultHeader)); err != nil {
			errs = append(errs, under(err, "headers", i))
		}
	}
	if n := m.Concurrency; n > maxConcurrency {
		wrong("concurrency", "%d is not between 1 and %d", n, maxConcurrency)
	}
	if first, longest := m.backoff(); first > longest {
		wrong("backoff", "first, %v, is longer than longest, %v", first, longest)
	}
	return errs
}

// maxConcurrency is the limit of Consume.Concurrency.
const maxConcurrency = 1000

func (m *Consume) backoff() (first, longest time.Duration) {
	return cmp.Or(time.Duration(m.Backoff.First), stetmsg.MinBackoff), cmp.Or(time.Duration(m.Backoff.Longest), stetmsg.MaxBackoff)
}

// handedOn returns an error for a header that messages cannot send to the service.
func handedOn(name, keyHeader string) error {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !isToken(name):
		return fmt.Errorf("%q is no name of a header field of HTTP", name)
	case ofProxy(name), strings.HasPrefix(canonical, "Content-"), strings.HasPrefix(canonical, "Ce-"), canonical == http.CanonicalHeaderKey(keyHeader):
		return fmt.Errorf("%s is set by stet itself", name)
	case ofConnection(name), slices.Contains([]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}, canonical):
		return fmt.Errorf("%s is about the connection to the service, and no message can set it", name)
	}
	return nil
}
