package stetwatermill

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

// UUID is an Options.Operation: a message is known by Watermill's UUID, its fingerprint is
// of its payload, and its scope is the name of the handler. A message without a UUID
// is refused: its producer does not use Watermill.
func UUID(m *message.Message) (stet.Op, error) {
	if m.UUID == "" {
		return stet.Op{}, errors.New("the message has no UUID: its producer does not use Watermill, or its marshaler leaves the UUID out; use By with an id of the producer's own")
	}
	return stet.Op{Key: m.UUID, Fingerprint: stet.NewFingerprint(m.Payload)}, nil
}

// By returns an Options.Operation of an identity of package stetmsg, such as
// stetmsg.Header("", "order-id") for a key in the metadata, or cloudevents.Identity.
func By(id stetmsg.Identity) func(*message.Message) (stet.Op, error) {
	return stetmsg.By(Envelope, id)
}

// Envelope is how an identity sees a message: by its metadata. The content type is that of
// the metadata Content-Type or content-type.
func Envelope(m *message.Message) stetmsg.Envelope {
	return stetmsg.Envelope{
		Header:      func(name string) (string, bool) { v, ok := m.Metadata[name]; return v, ok },
		Names:       func() []string { return slices.Collect(maps.Keys(m.Metadata)) },
		ContentType: cmp.Or(m.Metadata["Content-Type"], m.Metadata["content-type"]),
		Body:        m.Payload,
	}
}

// Metadata of a dead letter with the reason, as in the packages of the brokers.
// Watermill's own metadata (such as middleware.ReasonForPoisonedKey) is set too.
const (
	ReasonMetadata = "stet-reason"
	ErrorMetadata  = "stet-error"
)

// PoisonQueue returns an Options.DeadLetter that publishes a copy of the message, with its
// UUID, to a topic. The topic must not be an input of the router. The publisher
// must store a message durably before it returns: with RabbitMQ, set
// Publish.ConfirmDelivery, and have a queue there. PoisonQueue returns nil if there is no
// publisher or no topic, which Options refuse.
func PoisonQueue(publisher message.Publisher, topic string) func(context.Context, *message.Message, stetmsg.Decision) error {
	if publisher == nil || topic == "" {
		return nil
	}
	return func(ctx context.Context, m *message.Message, why stetmsg.Decision) error {
		from := message.SubscribeTopicFromCtx(ctx)
		if from == topic {
			return errors.New("the poison queue is the topic that the message came from: dead letters would come again and again")
		}
		dead := m.Copy()
		dead.SetContext(ctx)
		text := why.Text()
		for key, v := range map[string]string{
			ReasonMetadata: string(why.Reason), ErrorMetadata: text,
			middleware.ReasonForPoisonedKey:  string(why.Reason) + ": " + text,
			middleware.PoisonedTopicKey:      from,
			middleware.PoisonedHandlerKey:    message.HandlerNameFromCtx(ctx),
			middleware.PoisonedSubscriberKey: message.SubscriberNameFromCtx(ctx),
		} {
			dead.Metadata.Set(key, v)
		}
		return publisher.Publish(topic, dead)
	}
}
