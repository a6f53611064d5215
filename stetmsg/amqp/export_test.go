package amqp

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// SetPatience replaces the 30 s that the server has for each answer.
func (r *Receiver) SetPatience(d time.Duration) { r.patience = d }

// SetRefusals replaces the 10 s for which a starting server may refuse requests.
func (r *Receiver) SetRefusals(d time.Duration) { r.refusals = d }

// Outbound returns what publishes the copies of messages over conn to a queue.
func Outbound(conn *amqp.Connection, o Options) (publish func(ctx context.Context, queue string) error, err error) {
	p, err := newOutbound(&link{conn: conn, patience: answerTimeout}, o)
	return func(ctx context.Context, queue string) error {
		return p.publish(ctx, "", queue, amqp.Publishing{MessageId: "1"})
	}, err
}
