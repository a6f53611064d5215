// Package intake receives messages of a broker that a URL names, and passes them to one
// handler, for stet consume. The packages below stetmsg do the work.
package intake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/cloudevents"
	"github.com/stet-go/stet/store"
)

// Source is a source of messages.
type Source struct {
	// URL is the broker's: of amqp, amqps, nats, tls, kafka, kafkas, http or https. The last
	// two are the URL of a queue of SQS.
	URL string

	Queue     string // of RabbitMQ
	QueueType string // the same: of the queues that are declared

	Stream      string // of JetStream
	Consumer    string // the same, a durable one
	Credentials string // the same: a file of credentials

	Topics []string // of Kafka
	Group  string   // the same

	Visibility time.Duration // of SQS

	DeadLetter string
	Prefetch   int
	Ordered    bool // the broker must keep an order
}

// Reading states how a message becomes an operation. All but Headers are required.
type Reading struct {
	Class   string
	Scope   string
	ID      string // "header:NAME", "cloudevents", "digest", or "" for the broker's own
	MaxBody int64
	Headers []string // that are passed on
}

// Options configure the handling of messages. All but Backoff, Await and Observe are required.
type Options struct {
	Reading
	Engine      *stet.Engine
	Concurrency int
	MaxAttempts int
	Backoff     func(n int) time.Duration
	Await       func(context.Context) error
	Observe     func(context.Context, stetmsg.Decision)
	Log         *slog.Logger
	Handle      func(ctx context.Context, run *stet.Lease, m Message) (stet.Outcome, error)
}

// Message is the argument of a handler.
type Message struct {
	// Header has Content-Type, if it is known, the attributes of a CloudEvent, and
	// Reading.Headers.
	Header http.Header
	Body   []byte
}

// FieldError is an error about a field of a configuration.
type FieldError struct {
	Field string // in lower case, with underscores
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap is for errors.Is and errors.As.
func (e *FieldError) Unwrap() error { return e.Err }

func wrong(field, format string, args ...any) error {
	return &FieldError{field, fmt.Errorf(format, args...)}
}

// kind is a broker.
type kind struct {
	name   string
	fields []string // of Source that it has
	id     string   // the header that identifies a message, by default
	check  func(s Source) error
	run    func(ctx context.Context, s Source, o Options) error
}

var rabbitMQ, jetStream, kafkaBroker, sqsQueue = kind{
	name: "RabbitMQ", fields: []string{"queue", "queue_type", "prefetch"}, id: "message-id", check: checkAMQP, run: runAMQP,
}, kind{
	name: "JetStream", fields: []string{"stream", "consumer", "credentials", "prefetch"}, id: "Nats-Msg-Id", check: checkNATS, run: runNATS,
}, kind{
	name: "Kafka", fields: []string{"topics", "group"}, id: "message-id", check: checkKafka, run: runKafka,
}, kind{
	name: "SQS", fields: []string{"visibility", "prefetch"}, id: "message-id", check: checkSQS, run: runSQS,
}

// kind returns the broker of the URL.
func (s Source) kind() (kind, error) {
	scheme, _, _ := strings.Cut(s.URL, "://")
	switch scheme {
	case "amqp", "amqps":
		return rabbitMQ, nil
	case "nats", "tls":
		return jetStream, nil
	case "kafka", "kafkas":
		return kafkaBroker, nil
	case "http", "https":
		return sqsQueue, nil
	}
	return kind{}, wrong("from", "it is no URL of a broker; amqp://, amqps://, nats://, tls://, kafka:// and kafkas:// are, and the https:// of a queue of SQS")
}

// Check validates the source without a connection. The error joins *FieldErrors.
func (s Source) Check() error {
	k, err := s.kind()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"queue", s.Queue != ""}, {"queue_type", s.QueueType != ""}, {"stream", s.Stream != ""}, {"consumer", s.Consumer != ""},
		{"credentials", s.Credentials != ""}, {"topics", len(s.Topics) > 0}, {"group", s.Group != ""}, {"visibility", s.Visibility != 0},
		{"prefetch", s.Prefetch != 0},
	} {
		if f.set && !slices.Contains(k.fields, f.name) {
			errs = append(errs, wrong(f.name, "%s has none; there are %s", k.name, strings.Join(k.fields, ", ")))
		}
	}
	if err := k.check(s); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Run connects to the broker, and receives until ctx ends and running messages have ended. It
// returns an error if it cannot connect, or if the broker refuses a request.
func (s Source) Run(ctx context.Context, o Options) error {
	k, err := s.kind()
	if err != nil {
		return err
	}
	if o.ID == "" {
		o.ID = "header:" + k.id
	}
	return k.run(ctx, s, o)
}

// CheckID validates Reading.ID.
func CheckID(id string) error {
	switch name, header := strings.CutPrefix(id, "header:"); {
	case id == "", id == "cloudevents", id == "digest", header && name != "":
		return nil
	}
	return fmt.Errorf("%q is none of header:NAME, cloudevents and digest", id)
}

// identity is that of ID.
func (o Reading) identity() stetmsg.Identity {
	switch o.ID {
	case "cloudevents":
		return cloudevents.Identity(o.Scope)
	case "digest":
		return stetmsg.Digest(o.Scope)
	}
	return stetmsg.Header(o.Scope, strings.TrimPrefix(o.ID, "header:"))
}

// operation returns the operation of a message, or an error if the message cannot be passed on unchanged.
func (o Reading) operation(e stetmsg.Envelope) (op stet.Op, err error) {
	if int64(len(e.Body)) > o.MaxBody {
		return op, fmt.Errorf("the message has %d bytes; max_body is %d", len(e.Body), o.MaxBody)
	}
	if op, err = o.identity()(e); err != nil {
		return op, err
	}
	if err = sendable(op.Key); err != nil {
		return op, fmt.Errorf("the message's id %w", err)
	}
	_, err = o.message(e)
	op.Class = o.Class
	op.Name = store.LabelText(o.Class)
	return op, err
}

// sendable refuses values that a header field cannot have.
func sendable(v string) error {
	if v != strings.Trim(v, " \t") || strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c >= 0x7f }) {
		return errors.New("has characters that no header of HTTP can have, or a space at an end")
	}
	return nil
}

// message converts a message for the handler.
func (o Reading) message(e stetmsg.Envelope) (m Message, err error) {
	ev, ok, err := cloudevents.Read(e)
	switch t, _, _ := mime.ParseMediaType(e.ContentType); {
	case t == cloudevents.BatchMediaType && o.ID != "cloudevents":
		return m, errors.New("the message is a batch of events; with id: cloudevents each of them is an operation of its own")
	case err != nil:
		return m, err
	}
	if m = (Message{Header: http.Header{}, Body: e.Body}); ok {
		m = Message{Header: ev.Header(), Body: ev.Data}
	} else if e.ContentType != "" {
		m.Header.Set("Content-Type", e.ContentType)
	}
	if err := sendable(m.Header.Get("Content-Type")); err != nil {
		return m, fmt.Errorf("the message's content type %w", err)
	}
	for _, name := range o.Headers {
		v, ok := e.Header(name)
		if !ok {
			continue
		}
		if err := sendable(v); err != nil {
			return m, fmt.Errorf("the message's header %q %w", name, err)
		}
		m.Header.Set(name, v)
	}
	return m, nil
}

// consumer returns the consumer of messages of a broker.
func consumer[M any](o Options, envelope func(M) stetmsg.Envelope, part func(m M, contentType string, body []byte) M) (*stetmsg.Consumer[M], error) {
	options := stetmsg.Options[M]{
		Operation:   func(m M) (stet.Op, error) { return o.operation(envelope(m)) },
		Concurrency: o.Concurrency, MaxAttempts: o.MaxAttempts, Backoff: o.Backoff, Await: o.Await, Observe: o.Observe, ErrorLog: o.Log,
	}
	if o.ID == "cloudevents" {
		options.Split = func(m M) ([]M, error) {
			if n := len(envelope(m).Body); int64(n) > o.MaxBody {
				return nil, fmt.Errorf("the message has %d bytes; max_body is %d", n, o.MaxBody)
			}
			return cloudevents.Split(envelope, part)(m)
		}
	}
	return stetmsg.NewOutcome(o.Engine, options, func(ctx context.Context, run *stet.Lease, m M) (stet.Outcome, error) {
		of, err := o.message(envelope(m))
		if err != nil { // operation has refused it before
			return stet.Outcome{}, err
		}
		return o.Handle(ctx, run, of)
	})
}

// unused is a consumer for the constructors of the brokers' packages, which validate their options.
func unused[M any]() *stetmsg.Consumer[M] {
	c, err := stetmsg.NewDirect(stetmsg.Options[M]{}, func(context.Context, M, int) stetmsg.Decision { return stetmsg.Decision{} })
	if err != nil {
		panic(err) // never: nothing is wrong with these options
	}
	return c
}

// reason is the text of an error of stet.KindInvalid without the names of Go.
func reason(err error) error {
	if e, ok := errors.AsType[*stet.Error](err); ok && e.Cause != nil {
		err = e.Cause
	}
	return err
}
