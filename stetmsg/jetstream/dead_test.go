package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/jetstream"
)

// subjects are those of a stream whose name is the test's, made with the server's
// own defaults: within two minutes it drops messages with an ID that it has seen.
func (f *fixture) stream(name string, subjects ...string) js.Stream {
	f.t.Helper()
	s, err := f.js.CreateStream(f.t.Context(), js.StreamConfig{Name: name, Subjects: subjects})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = f.js.DeleteStream(context.Background(), name) })
	return s
}

// failing receives the messages of a subject, and fails each of them.
func (f *fixture) failing(stream, name, subject, dead string) (stop func()) {
	f.t.Helper()
	consumer, err := f.js.CreateConsumer(f.t.Context(), stream, js.ConsumerConfig{Durable: name, AckPolicy: js.AckExplicitPolicy, FilterSubject: subject})
	if err != nil {
		f.t.Fatal(err)
	}
	return f.receive(f.byMessageID(name), jetstream.Options{JetStream: f.js, Consumer: consumer, DeadLetterSubject: dead})
}

// byMessageID is a consumer that knows messages by Nats-Msg-Id, and fails each.
func (f *fixture) byMessageID(scope string) *stetmsg.Consumer[js.Msg] {
	f.t.Helper()
	c, err := stetmsg.New(f.engine, stetmsg.Options[js.Msg]{
		Operation: stetmsg.By(jetstream.Envelope, stetmsg.Header(scope, nats.MsgIdHdr)), ErrorLog: quiet,
	}, func(context.Context, js.Msg) ([]byte, error) {
		return nil, stet.Permanent(errors.New("it cannot be"))
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// count returns how many messages a stream has of a subject.
func (f *fixture) count(s js.Stream, subject string) int {
	info, err := s.Info(context.Background(), js.WithSubjectFilter(subject))
	if err != nil {
		return 0
	}
	return int(info.State.Subjects[subject])
}

func (f *fixture) send(subject, id string, header nats.Header, body []byte) {
	f.t.Helper()
	m := nats.NewMsg(subject)
	for name, values := range header {
		m.Header[name] = values
	}
	if m.Data = body; id != "" {
		m.Header.Set(nats.MsgIdHdr, id)
	}
	if ack, err := f.js.PublishMsg(f.t.Context(), m); err != nil || ack.Duplicate {
		f.t.Fatal(ack, err)
	}
}

func TestDeadLettersOfTwoConsumersAreBothStored(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	f.stream("two-orders", "two.orders.>")
	dead := f.stream("two-dead", "two.dead.>")
	f.send("two.orders.created", "order-1042", nil, []byte("five books"))
	for _, name := range []string{"billing", "shipping"} {
		defer f.failing("two-orders", name, "two.orders.>", "two.dead."+name)()
		f.until(func() bool { return f.count(dead, "two.dead."+name) == 1 })
	}
}

func TestDeadLettersInTheSameStreamAreStored(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	s := f.stream("own", "own.>")
	defer f.failing("own", "workers", "own.created", "own.dead")()
	f.send("own.created", "order-1042", nats.Header{"Trace": {"7"}}, []byte("five books"))
	f.until(func() bool { return f.count(s, "own.dead") == 1 })
	first, err := s.GetLastMsgForSubject(t.Context(), "own.dead")
	if err != nil {
		t.Fatal(err)
	}
	if first.Header.Get(jetstream.OriginalIDHeader) != "order-1042" || first.Header.Get("Trace") != "7" || string(first.Data) != "five books" {
		t.Errorf("the dead letter is %v %q", first.Header, first.Data)
	}
	// An operator puts it back, and it fails again.
	header := nats.Header{}
	for name, values := range first.Header {
		if name != nats.MsgIdHdr {
			header[name] = values
		}
	}
	f.send("own.created", "", header, first.Data)
	f.until(func() bool { return f.count(s, "own.dead") == 2 })
	second, err := s.GetLastMsgForSubject(t.Context(), "own.dead")
	if err != nil || second.Header.Get(jetstream.OriginalIDHeader) != "order-1042" {
		t.Errorf("the second dead letter is %v, %v", second.Header, err)
	}
	if rec, err := f.engine.Lookup(t.Context(), f.engine.ID("workers", "order-1042")); err != nil || rec.Record.Attempt != 1 {
		t.Errorf("the redriven message is not the same operation: %+v, %v", rec, err)
	}
}

func TestRepeatedDeadLetterIsStoredOnce(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	s := f.stream("again", "again.>")
	consumer, err := f.js.CreateConsumer(t.Context(), "again", js.ConsumerConfig{Durable: "workers", AckPolicy: js.AckExplicitPolicy, FilterSubject: "again.created"})
	if err != nil {
		t.Fatal(err)
	}
	// The first answer to the publication is lost: the message comes again.
	lossy := &lossyJetStream{JetStream: f.js, lose: 1}
	defer f.receive(f.byMessageID("again"), jetstream.Options{JetStream: lossy, Consumer: consumer, DeadLetterSubject: "again.dead"})()
	f.send("again.created", "order-1042", nil, []byte("five books"))
	f.until(func() bool {
		info, err := consumer.Info(context.Background())
		return err == nil && info.NumAckPending == 0 && info.Delivered.Consumer == 2
	})
	if n := f.count(s, "again.dead"); n != 1 || lossy.lose != 0 {
		t.Errorf("%d dead letters, %d answers to lose", n, lossy.lose)
	}
}

// lossyJetStream loses answers to publications.
type lossyJetStream struct {
	js.JetStream
	lose int
}

func (l *lossyJetStream) PublishMsg(ctx context.Context, m *nats.Msg, opts ...js.PublishOpt) (*js.PubAck, error) {
	ack, err := l.JetStream.PublishMsg(ctx, m, opts...)
	if err == nil && l.lose > 0 {
		l.lose--
		return nil, errors.New("the answer was lost")
	}
	return ack, err
}

func TestDeadLetterNearTheSizeLimitIsStored(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	s := f.stream("large", "large.>")
	defer f.failing("large", "workers", "large.created", "large.dead")()
	limit := int(f.js.Conn().MaxPayload())
	for i, room := range []int{64, 130, 300, 2000} { // the first is for the ID alone
		f.send("large.created", stet.NewKey(), nil, bytes.Repeat([]byte("x"), limit-room))
		f.until(func() bool { return f.count(s, "large.dead") == i+1 })
		m, err := s.GetLastMsgForSubject(t.Context(), "large.dead")
		if err != nil || len(m.Data) != limit-room {
			t.Fatalf("with room for %d bytes: %v", room, err)
		}
	}
}

func TestConsumerThatReceivesDeadLettersIsRefused(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	f.stream("own", "own.>", "other")
	for name, tc := range map[string]struct {
		config  js.ConsumerConfig
		dead    string
		refused bool
	}{
		"all of its stream":   {js.ConsumerConfig{}, "own.dead", true},
		"one filter":          {js.ConsumerConfig{FilterSubject: "own.*"}, "own.dead", true},
		"with more behind":    {js.ConsumerConfig{FilterSubject: "own.*.dead"}, "own.a.dead", true},
		"the rest":            {js.ConsumerConfig{FilterSubject: "own.a.>"}, "own.a.b.c", true},
		"not the stem":        {js.ConsumerConfig{FilterSubject: "own.a.>"}, "own.a", false},
		"another one":         {js.ConsumerConfig{FilterSubject: "own.a"}, "own.dead", false},
		"a longer one":        {js.ConsumerConfig{FilterSubject: "own.*"}, "own.dead.a", false},
		"a stream of its own": {js.ConsumerConfig{}, f.t.Name() + "-dead", false},
		"without bodies":      {js.ConsumerConfig{FilterSubject: "own.a", HeadersOnly: true}, "own.dead", true},
		"that is not durable": {js.ConsumerConfig{FilterSubject: "own.a", Name: "fleeting"}, "own.dead", true},
	} {
		t.Run(name, func(t *testing.T) {
			config := tc.config
			if config.AckPolicy = js.AckExplicitPolicy; config.Name == "" {
				config.Durable = strings.ReplaceAll(name, " ", "-")
			}
			consumer, err := f.js.CreateConsumer(t.Context(), "own", config)
			if err != nil {
				t.Fatal(err)
			}
			_, err = jetstream.New(t.Context(), f.byMessageID("own"), jetstream.Options{JetStream: f.js, Consumer: consumer, DeadLetterSubject: tc.dead})
			if refused := stet.KindOf(err) == stet.KindInvalid; refused != tc.refused || !refused && err != nil {
				t.Error(err)
			}
		})
	}
}
