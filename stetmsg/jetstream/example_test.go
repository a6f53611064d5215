package jetstream_test

import (
	"context"
	"log"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/jetstream"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	ctx := context.Background()
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	nc, err := nats.Connect("nats://localhost", nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	stream, err := js.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	workers, err := stream.Consumer(ctx, "ORDERS", "workers")
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := stetmsg.New(engine, stetmsg.Options[js.Msg]{
		Operation: stetmsg.By(jetstream.Envelope, stetmsg.Header("orders", nats.MsgIdHdr)),
	}, func(_ context.Context, m js.Msg) ([]byte, error) {
		log.Printf("shipping %s", m.Data())
		return nil, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	receiver, err := jetstream.New(ctx, consumer, jetstream.Options{JetStream: stream, Consumer: workers, DeadLetterSubject: "ORDERS.dead"})
	if err != nil {
		log.Fatal(err)
	}
	if err := receiver.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
