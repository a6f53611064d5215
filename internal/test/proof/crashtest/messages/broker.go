package messages

import (
	"context"
	"time"

	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
)

const (
	scope    = "orders"
	outgoing = "shipped" // where emitted messages go
)

// trade is one kind of broker.
type trade struct {
	start     func(ctx context.Context, r *rig.Rig) (broker, error)
	consume   func(ctx context.Context, s *shop) error
	publisher func(ctx context.Context, o order) (publish stetmsg.Publish, done func(), err error)
	reach     time.Duration // for a consumer to come by its point
}

var trades map[string]trade

func init() { // not in the declaration, which consume refers to
	trades = map[string]trade{
		"rabbitmq":  {startRabbitMQ, consumeRabbitMQ, publisherRabbitMQ, reachTimeout},
		"jetstream": {startNATS, consumeNATS, publisherNATS, reachTimeout},
		"kafka":     {startKafka(1), consumeKafka, publisherKafka, 3 * reachTimeout}, // a group waits for the dead
		"kafka-3":   {startKafka(3), consumeKafka, publisherKafka, 3 * reachTimeout},
	}
}

// broker is the parent's side of one.
type broker interface {
	url() string
	restart(ctx context.Context) error
	// publish returns when the broker has confirmed all of ids.
	publish(ctx context.Context, ids []string) error
	// left is how many messages no consumer is processing, or of
	// which it is known that they are not acknowledged, and how many are dead.
	left(ctx context.Context) (left, dead int, err error)
	// arrived is what relays have sent, repetitions included. It is called once.
	arrived(ctx context.Context) ([]crashtest.Letter, error)
	close()
}
