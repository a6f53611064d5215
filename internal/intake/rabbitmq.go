package intake

import (
	"context"
	"strings"
	"time"

	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/stetmsg/amqp"
)

// dialTimeout bounds how long connecting takes.
const dialTimeout = 10 * time.Second

// toExchange begins a dead-letter target that is an exchange.
const toExchange = "exchange:"

func (s Source) amqp() amqp.Options {
	ao := amqp.Options{Queue: s.Queue, Prefetch: s.Prefetch, QueueType: s.QueueType, Dial: func(context.Context) (*rabbit.Connection, error) {
		return rabbit.DialConfig(s.URL, rabbit.Config{Locale: "en_US", Properties: rabbit.Table{"connection_name": "stet consume"}, Dial: rabbit.DefaultDial(dialTimeout)})
	}}
	if exchange, ok := strings.CutPrefix(s.DeadLetter, toExchange); ok {
		ao.DeadLetterExchange = exchange
	} else {
		ao.DeadLetterQueue = s.DeadLetter
	}
	return ao
}

func checkAMQP(s Source) error {
	if _, err := rabbit.ParseURI(s.URL); err != nil { // its text has the password
		return wrong("from", "it must be like amqp://user:password@host:5672/vhost, with special characters percent-encoded")
	}
	switch {
	case s.Queue == "":
		return wrong("queue", "required: the queue that is received from")
	case s.Ordered:
		return wrong("ordered", "RabbitMQ does not keep the order of redelivered messages")
	case s.DeadLetter == s.Queue:
		return wrong("dead_letter", "it is the queue itself: dead letters would come again and again")
	case s.DeadLetter == toExchange:
		return wrong("dead_letter", "which exchange? exchange:NAME")
	case s.QueueType != "" && s.QueueType != "quorum" && s.QueueType != "classic":
		return wrong("queue_type", "%q is neither quorum nor classic", s.QueueType)
	case s.Prefetch < 0 || s.Prefetch > 1<<16-1:
		return wrong("prefetch", "%d is not between 1 and 65535", s.Prefetch)
	}
	if _, err := amqp.New(unused[rabbit.Delivery](), s.amqp()); err != nil {
		return wrong("from", "%w", reason(err))
	}
	return nil
}

func runAMQP(ctx context.Context, s Source, o Options) error {
	c, err := consumer(o, amqp.Envelope, amqp.Part)
	if err != nil {
		return err
	}
	r, err := amqp.New(c, s.amqp())
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
