package jetstream

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

// Publisher returns a stetmsg.Publish that publishes to streams: Message.To is the
// subject. The ID goes along as Nats-Msg-Id, by which a stream drops repetitions
// within its duplicate window, and as stetmsg.IDHeader. Message.Key is not used.
func Publisher(js jetstream.JetStream) stetmsg.Publish {
	return func(ctx context.Context, messages []stet.Message) error {
		acks := make([]jetstream.PubAckFuture, len(messages))
		for i, m := range messages {
			out := nats.NewMsg(m.To)
			for name, value := range m.Header {
				out.Header.Set(name, value)
			}
			out.Header.Set(stetmsg.IDHeader, m.ID)
			out.Header.Set(nats.MsgIdHdr, m.ID)
			out.Data = m.Body
			var err error
			if acks[i], err = js.PublishMsgAsync(out); err != nil {
				return err
			}
		}
		var err error
		for _, ack := range acks {
			select {
			case <-ack.Ok():
			case e := <-ack.Err():
				err = errors.Join(err, e)
			case <-ctx.Done():
				return errors.Join(err, context.Cause(ctx))
			}
		}
		return err
	}
}
