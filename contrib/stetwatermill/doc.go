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
//		"github.com/stet-go/stet/stetmsg"
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
//			Options:    stetmsg.Options[*message.Message]{Operation: stetwatermill.UUID},
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
// An error of a handler in lease mode is a dead letter, because an effect may have happened
// before it. Return stet.Retryable(err) if none did. With HandleTx the handler's writes
// and the outcome are one commit. Any error rolls back, and the message comes again.
//
// # Messages that a handler produces
//
// The router publishes them after the handler has returned, and acknowledges after that. A
// process that dies in between gets the message again. The handler does not run again:
// the produced messages are stored with the outcome, and published again with their UUIDs, metadata
// and payloads. A produced message is therefore published at least once, always with one
// UUID, and the next handler with this middleware runs once. Messages that a handler publishes
// itself, through its own publisher, are not stored; see stet.Run.Emit for that.
//
// # Identity of a message
//
// Each handler of a topic has its own operations: an identity without a scope (UUID,
// and stetmsg.Header("", …)) gets the handler's name as its scope. Give the identity a scope if a
// handler may be renamed, or shares its operations with other programs.
//
// Watermill's UUID is made by the producer, and pub/subs pass it on. It is the same in every
// delivery of one message. It differs if the producer calls NewMessage again to
// publish again, and a producer without Watermill does not set it: then use By with the
// producer's own ID.
//
// # Other middlewares
//
//   - Deduplicator is not needed, and must not be used: it records a message before
//     the handler runs, so that a message whose handler failed is dropped when it comes again.
//   - PoisonQueue, around this middleware, also moves messages that only need another delivery;
//     filter it: func(err error) bool { return !errors.As(err, new(*stetwatermill.RetryError)) }.
//   - InstantAck, around it, acknowledges before the outcome is durable. That is logged.
//   - Retry, inside, repeats the handler within one run, also after an effect.
//   - Recoverer is not needed.
package stetwatermill
