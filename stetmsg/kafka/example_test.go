package kafka_test

import (
	"context"
	"log"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/cloudevents"
	"github.com/stet-go/stet/stetmsg/kafka"
	"github.com/stet-go/stet/store/memory"
)

// CloudEvents are known by their source and id, in any mode.
func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	consumer, err := stetmsg.New(engine, stetmsg.Options[*kgo.Record]{
		Operation: stetmsg.By(kafka.Envelope, cloudevents.Identity("orders")),
		Split:     cloudevents.Split(kafka.Envelope, kafka.Part),
	}, func(_ context.Context, rec *kgo.Record) ([]byte, error) {
		log.Printf("shipping %s", rec.Value)
		return nil, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	receiver, err := kafka.New(consumer, kafka.Options{
		Client: []kgo.Opt{kgo.SeedBrokers("localhost:9092")}, Group: "workers", Topics: []string{"orders"}, DeadLetterTopic: "orders-dead",
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := receiver.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
