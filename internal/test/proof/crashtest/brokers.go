package crashtest

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/test/rig"
)

// StartRabbitMQ starts RabbitMQ on r, with durable queues. It must be restarted
// properly: of a quorum queue, RabbitMQ 3.10 on one node may find no leader after
// SIGKILL.
func StartRabbitMQ(ctx context.Context, r *rig.Rig, queues ...string) (*rig.RabbitMQServer, error) {
	server, err := r.StartRabbitMQ(ctx, rig.RabbitMQOptions{})
	if err != nil {
		return nil, err
	}
	conn, err := amqp091.Dial(server.URL())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	for _, q := range queues {
		if err == nil {
			_, err = ch.QueueDeclare(q, true, false, false, false, nil)
		}
	}
	return server, err
}

// Durable is the name of a stream's consumer.
const Durable = "workers"

// DialNATS connects for good.
func DialNATS(url string) (*nats.Conn, js.JetStream, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	stream, err := js.New(nc)
	return nc, stream, err
}

// StartNATS starts NATS on r, with streams, and a consumer of the first one.
//
// They are limited streams and not work queues: after SIGKILL, NATS 2.9 has
// forgotten some acknowledgements, but not that it has removed the
// acknowledged messages, and searches for them permanently instead of delivering the rest.
func StartNATS(ctx context.Context, r *rig.Rig, streams ...js.StreamConfig) (*rig.NATSServer, error) {
	server, err := r.StartNATS(ctx)
	if err != nil {
		return nil, err
	}
	nc, jet, err := DialNATS(server.URL())
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	for _, s := range streams {
		if err == nil {
			_, err = jet.CreateStream(ctx, s)
		}
	}
	if err == nil {
		_, err = jet.CreateConsumer(ctx, streams[0].Name, js.ConsumerConfig{Durable: Durable, AckPolicy: js.AckExplicitPolicy, AckWait: 3 * time.Second})
	}
	return server, err
}
