package stetwatermill_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetwatermill"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{}) // a service needs a durable store, such as store/postgres
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := stetwatermill.Middleware(engine, stetwatermill.Options{
		Options:    stetmsg.Options[*message.Message]{Operation: stetwatermill.UUID},
		DeadLetter: stetwatermill.PoisonQueue(pubsub, "orders.poison"),
	})
	if err != nil {
		log.Fatal(err)
	}
	router.AddHandler("billing", "orders", pubsub, "invoices", pubsub, func(m *message.Message) ([]*message.Message, error) {
		fmt.Println("billing", string(m.Payload))
		return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte("invoice 7"))}, nil
	}).AddMiddleware(guard)
	go func() {
		if err := router.Run(context.Background()); err != nil {
			log.Fatal(err)
		}
	}()
	<-router.Running()

	id := watermill.NewUUID()
	for range 3 { // published three times
		if err := pubsub.Publish("orders", message.NewMessage(id, []byte("order 7"))); err != nil {
			log.Fatal(err)
		}
	}
	invoices, err := pubsub.Subscribe(context.Background(), "invoices")
	if err != nil {
		log.Fatal(err)
	}
	uuids := map[string]bool{}
	for range 3 {
		m := <-invoices
		m.Ack()
		uuids[m.UUID] = true
	}
	fmt.Println("invoices with", len(uuids), "UUID")
	if err := router.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// billing order 7
	// invoices with 1 UUID
}
