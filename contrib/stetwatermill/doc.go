// Package stetwatermill makes handlers of Watermill's router safe against messages that
// come more than once: each message is handled once, and nothing is lost.
//
//	package main
//
//	import (
//		"context"
//		"log"
//
//		"github.com/ThreeDotsLabs/watermill"
//		"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
//		"github.com/ThreeDotsLabs/watermill/message"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/contrib/stetwatermill"
//		"github.com/stet-go/stet/store/postgres"
//	)
//
//	func main() {
//		ctx, logger := context.Background(), watermill.NewSlogLogger(nil)
//		config := amqp.NewDurableQueueConfig("amqp://localhost")
//		config.Publish.ConfirmDelivery = true // else a publish that is lost is no error
//		subscriber, err := amqp.NewSubscriber(config, logger)
//		check(err)
//		publisher, err := amqp.NewPublisher(config, logger)
//		check(err)
//		router, err := message.NewRouter(message.RouterConfig{}, logger)
//		check(err)
//
//		store, err := postgres.Open(ctx, "postgres://localhost/shop", postgres.Options{})
//		check(err)
//		engine, err := stet.New(store, stet.Options{})
//		check(err)
//		guard, err := stetwatermill.Middleware(engine, stetwatermill.Options{
//			Operation:  stetwatermill.UUID,
//			DeadLetter: stetwatermill.PoisonQueue(publisher, "orders.poison"),
//		})
//		check(err)
//
//		router.AddHandler("billing", "orders", subscriber, "invoices", publisher, bill).AddMiddleware(guard)
//		check(router.Run(ctx))
//	}
//
//	// bill is called once for each order.
//	func bill(m *message.Message) ([]*message.Message, error) {
//		return []*message.Message{message.NewMessage(watermill.NewUUID(), m.Payload)}, nil
//	}
//
//	func check(err error) {
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
// The decisions are those of package stetmsg, whose table says what becomes of a message:
//
//	stetmsg.Ack         the router publishes what the handler has produced, and acknowledges
//	stetmsg.Retry       after a pause (Options.MaxPause) the router gets a *RetryError, and nacks
//	stetmsg.DeadLetter  Options.DeadLetter puts the message aside, and the router acknowledges
//
// So an error of a handler in lease mode is a dead letter, as an effect may have happened
// before it; return stet.Retryable(err) where none did. With HandleTx the handler's writes
// and the outcome are one commit, and any error rolls back and is tried again.
//
// # Messages that a handler produces
//
// The router publishes them after the handler has returned, and acknowledges after that. A
// process that dies in between gets the message again. The handler does not run again: what
// it has produced is stored with the outcome, and is published again with the UUIDs, metadata
// and payloads that it had. So a produced message leaves at least once, always with one
// UUID, and a handler with this middleware behind it runs once. What a handler publishes
// itself, through a publisher of its own, is not stored; see stet.Run.Emit for that.
//
// # Which messages are the same
//
// Each handler of a topic has operations of its own: an identity without a scope (UUID,
// and stetmsg.Header("", …)) gets the handler's name for one. Give the identity a scope where a
// handler may be renamed, or shares its operations with other programs.
//
// Watermill's UUID is made by the producer, and pub/subs pass it on. It is the same in every
// delivery of one message. It is not the same where the producer calls NewMessage again to
// publish again, nor does a producer that does not use Watermill set it: use By with an id of
// the producer's own there.
//
// # Other middlewares
//
//   - Deduplicator is not needed, and must not be used: it takes note of a message before
//     the handler runs, so that a message whose handler failed is dropped when it comes again.
//   - PoisonQueue, outside of this middleware, puts aside what is only to be delivered again;
//     filter it: func(err error) bool { return !errors.As(err, new(*stetwatermill.RetryError)) }.
//   - InstantAck, outside, acknowledges before the outcome is durable. That is logged.
//   - Retry, inside, repeats the handler within one run, whatever it has done before.
//   - Recoverer is not needed.
package stetwatermill
