package messages

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/jetstream"
)

const (
	stream     = "ORDERS"
	deadStream = "DEAD"
	outStream  = "SHIPPED"
)

type natsServer struct {
	server *rig.NATSServer
	nc     *nats.Conn
	js     js.JetStream
}

func startNATS(ctx context.Context, r *rig.Rig) (broker, error) {
	// Duplicates are to reach the consumers: the ids are in a header that the
	// server does not look at. Repetitions of emitted messages must show.
	server, err := crashtest.StartNATS(ctx, r, js.StreamConfig{Name: stream, Subjects: []string{stream}}, js.StreamConfig{Name: deadStream, Subjects: []string{deadStream}},
		js.StreamConfig{Name: outStream, Subjects: []string{outgoing}, Duplicates: 100 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	b := &natsServer{server: server}
	b.nc, b.js, err = crashtest.DialNATS(server.URL())
	return b, err
}

func (b *natsServer) url() string { return b.server.URL() }

func (b *natsServer) close() { b.nc.Close() }

func (b *natsServer) restart(ctx context.Context) error {
	return errors.Join(b.server.Kill(), b.server.Start(ctx))
}

func (b *natsServer) publish(ctx context.Context, ids []string) error {
	for _, id := range ids {
		m := nats.NewMsg(stream)
		m.Header.Set("message-id", id)
		m.Data = []byte(id)
		for {
			try, cancel := context.WithTimeout(ctx, 2*time.Second)
			_, err := b.js.PublishMsg(try, m)
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			_ = crash.Pause(ctx, 50*time.Millisecond)
		}
	}
	return nil
}

// left asks the consumer, not the stream, which keeps everything.
func (b *natsServer) left(ctx context.Context) (left, dead int, err error) {
	workers, err := b.js.Consumer(ctx, stream, crashtest.Durable)
	if err != nil {
		return 0, 0, err
	}
	letters, err := b.js.Stream(ctx, deadStream)
	if err != nil {
		return 0, 0, err
	}
	info := workers.CachedInfo()
	return int(info.NumPending) + info.NumAckPending, int(letters.CachedInfo().State.Msgs), nil
}

func (b *natsServer) arrived(ctx context.Context) ([]crashtest.Letter, error) {
	out, err := b.js.Stream(ctx, outStream)
	if err != nil {
		return nil, err
	}
	state := out.CachedInfo().State
	letters := make([]crashtest.Letter, 0, state.Msgs)
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := out.GetMsg(ctx, seq)
		if err != nil {
			return nil, err
		}
		l, err := readLetter(m.Header.Get(stetmsg.IDHeader), m.Data)
		if err != nil {
			return nil, err
		}
		letters = append(letters, l)
	}
	return letters, nil
}

func consumeNATS(ctx context.Context, s *shop) error {
	nc, jet, err := crashtest.DialNATS(s.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	workers, err := jet.Consumer(ctx, stream, crashtest.Durable)
	if err != nil {
		return err
	}
	consumer, err := newConsumer(s, jetstream.Envelope)
	if err != nil {
		return err
	}
	receiver, err := jetstream.New(ctx, consumer, jetstream.Options{JetStream: jet, Consumer: workers, DeadLetterSubject: deadStream})
	if err != nil {
		return err
	}
	child.Ready(os.Stdout, "")
	return receiver.Run(ctx)
}

func publisherNATS(_ context.Context, o order) (stetmsg.Publish, func(), error) {
	nc, jet, err := crashtest.DialNATS(o.URL)
	if err != nil {
		return nil, nil, err
	}
	return jetstream.Publisher(jet), nc.Close, nil
}
