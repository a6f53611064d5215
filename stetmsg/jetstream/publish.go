package jetstream

import (
	"context"
	"errors"
	"strings"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
)

// Publisher returns a stetmsg.Publish that publishes to streams, over js' connection:
// Message.To is the subject. The ID goes along as Nats-Msg-Id, by which a stream drops
// repetitions within its duplicate window, and as stetmsg.IDHeader. Message.Key is not
// used. Calls take turns.
func Publisher(js jetstream.JetStream) stetmsg.Publish {
	// Unanswered publications count towards a limit until their timeout, so the caller's
	// connection must not be used.
	own, invalid := jetstream.New(js.Conn())
	turn := make(chan struct{}, 1)
	return func(ctx context.Context, messages []stet.Message) error {
		if invalid != nil {
			return invalid
		}
		for _, m := range messages {
			if err := subject(m.To); err != nil {
				return err
			}
		}
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err := publish(ctx, own, messages)
		if err != nil {
			own.CleanupPublisher()
		}
		return err
	}
}

// publish sends messages, and waits for all answers.
func publish(ctx context.Context, js jetstream.JetStream, messages []stet.Message) error {
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

// Check refuses messages that NATS never accepts, or not with its default settings because of
// their size: for stet.Options.CheckMessage. The error is of kind
// stet.KindInvalid.
func Check(m stet.Message) error {
	const payload, around, each = 1 << 20, 200, 4 // bytes of the largest payload, of our headers, and around each other
	n := around + len(m.Body)
	for name, value := range m.Header {
		n += each + len(name) + len(value)
	}
	if n > payload {
		return misuse.Errorf("stetmsg/jetstream: the message would have %d bytes; at most %d", n, payload)
	}
	for name, value := range m.Header {
		switch {
		case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }):
			return misuse.Errorf("stetmsg/jetstream: the name %.300q in Message.Header must be visible ASCII without a colon", name)
		case strings.ContainsAny(value, "\r\n"):
			return misuse.Errorf("stetmsg/jetstream: the value of %.300q in Message.Header has more than one line", name)
		}
	}
	return subject(m.To)
}

func subject(name string) error {
	for token := range strings.SplitSeq(name, ".") {
		if token == "" || token == "*" || token == ">" || strings.ContainsFunc(token, unicode.IsSpace) {
			return misuse.Errorf("stetmsg/jetstream: Message.To is %.300q; the parts of a subject between dots must not be empty, nor have spaces or wildcards", name)
		}
	}
	return nil
}
