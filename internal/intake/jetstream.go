package intake

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet/internal/misuse"
	stream "github.com/stet-go/stet/stetmsg/jetstream"
)

// answerTimeout bounds what a server is asked before the first message.
const answerTimeout = 10 * time.Second

func checkNATS(s Source) error {
	for one := range strings.SplitSeq(s.URL, ",") {
		if u, err := url.Parse(one); err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return wrong("from", "it must be like nats://user:password@host:4222, or several of these with commas")
		}
	}
	switch {
	case s.Stream == "":
		return wrong("stream", "required: the stream that is received from")
	case s.Consumer == "":
		return wrong("consumer", "required: the durable pull consumer of the stream, with explicit acknowledgement")
	case s.DeadLetter == "":
		return wrong("dead_letter", "required: the subject of a stream that gets dead letters")
	case strings.ContainsAny(s.DeadLetter, "*> \t\r\n"):
		return wrong("dead_letter", "%q must be one subject, without wildcards and spaces", s.DeadLetter)
	case s.Prefetch < 0 || s.Prefetch == 1:
		return wrong("prefetch", "%d; it must be at least 2: one message in progress, and one requested", s.Prefetch)
	case s.Credentials != "":
		if _, err := os.ReadFile(s.Credentials); err != nil {
			return wrong("credentials", "%w", err)
		}
	}
	return nil
}

func runNATS(ctx context.Context, s Source, o Options) error {
	c, err := consumer(o, stream.Envelope, stream.Part)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	options := []nats.Option{nats.Name("stet consume"), nats.MaxReconnects(-1), nats.Timeout(dialTimeout),
		nats.ClosedHandler(func(nc *nats.Conn) { // for good: it is not let in any more
			cancel(errors.Join(errors.New("the connection was closed"), nc.LastError()))
		})}
	if s.Credentials != "" {
		options = append(options, nats.UserCredentials(s.Credentials))
	}
	nc, err := nats.Connect(s.URL, options...)
	if err != nil {
		return fmt.Errorf("cannot connect to JetStream: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	within, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	of, err := js.Consumer(within, s.Stream, s.Consumer)
	if err != nil {
		return fmt.Errorf("the consumer %q of the stream %q: %w", s.Consumer, s.Stream, err)
	}
	if pending := of.CachedInfo().Config.MaxAckPending; s.Ordered && pending != 1 {
		return misuse.Errorf("ordered: the consumer's MaxAckPending is %d; JetStream keeps the order of redelivered messages only with 1", pending)
	}
	if _, err := js.StreamNameBySubject(within, s.DeadLetter); err != nil {
		return fmt.Errorf("dead_letter: a stream that gets the subject %q: %w", s.DeadLetter, err)
	}
	r, err := stream.New(within, c, stream.Options{JetStream: js, Consumer: of, DeadLetterSubject: s.DeadLetter, Prefetch: s.Prefetch})
	if err != nil {
		return err
	}
	stop()
	if err := r.Run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); nc.IsClosed() {
		return cause
	}
	return nil
}
