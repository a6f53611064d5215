package amqp_test

import (
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store"
)

func header(name, value string) map[string]string { return map[string]string{name: value} }

func TestCheckRefusesInvalidMessages(t *testing.T) {
	for name, m := range map[string]stet.Message{
		"a long routing key":  {To: strings.Repeat("x", 256)},
		"a long name":         {To: "q", Header: header(strings.Repeat("x", 256), "")},
		"a long content type": {To: "q", Header: header("content-type", strings.Repeat("x", 256))},
		"a large header":      {To: "q", Header: header("x", strings.Repeat("x", 128<<10))},
		"other queues":        {To: "q", Header: header("CC", "another")},
	} {
		if err := amqp.Check(m); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckedMessageIsPublished(t *testing.T) {
	f := newFixture(t, rig.RabbitMQ(t).URL())
	p, err := amqp.NewPublisher(amqp.PublisherOptions{URL: f.url})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, m := range []stet.Message{
		{To: f.queue},
		{To: f.queue, Body: make([]byte, store.MaxOutbox-100)},
		{To: f.queue, Header: header(strings.Repeat("x", 255), "\x00\r\n")},
		{To: f.queue, Header: header("x", strings.Repeat("x", 128<<10-150))},
		{To: f.queue, Header: header("content-type", strings.Repeat("x", 255))},
	} {
		m.ID = stet.NewKey()
		if err := amqp.Check(m); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish(t.Context(), []stet.Message{m}); err != nil {
			t.Errorf("%d bytes, %d headers: %v", len(m.Body), len(m.Header), err)
		}
	}
	// A refused message does not close the connection.
	if err := p.Publish(t.Context(), []stet.Message{{To: f.queue}, {To: f.queue, Header: header("BCC", "x")}}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
	if err := p.Publish(t.Context(), []stet.Message{{To: f.queue}}); err != nil {
		t.Error(err)
	}
}
