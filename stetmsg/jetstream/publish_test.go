package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/jetstream"
)

func TestPublishedMessageIsStoredOnceWithItsID(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	name := t.Name() + "-out"
	if _, err := f.js.CreateStream(t.Context(), js.StreamConfig{Name: name, Subjects: []string{name}, Duplicates: time.Minute}); err != nil {
		t.Fatal(err)
	}
	publish := jetstream.Publisher(f.js)
	messages := []stet.Message{
		{ID: "id-1", To: name, Header: map[string]string{"kind": "shipped"}, Body: []byte("five books")},
		{ID: "id-2", To: name, Body: []byte("six books")},
	}
	for range 2 { // the answer to the first time was lost
		if err := publish(t.Context(), messages); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := f.js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("%d messages arrived; want 2", n)
	}
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil || string(m.Data) != "five books" || m.Header.Get(stetmsg.IDHeader) != "id-1" || m.Header.Get("kind") != "shipped" {
		t.Errorf("got %+v, %v; want string(m.Data) == \"five books\", m.Header.Get(stetmsg.IDHeader) == \"id-1\", m.Header.Get(\"kind\") == \"shipped\", no error", m, err)
	}
	if err := publish(t.Context(), []stet.Message{{ID: "id-3", To: "no-stream"}}); err == nil {
		t.Error("a message that no stream keeps was published")
	}
}

// There is no response if only plain subscribers listen, or if the server denies the
// subject.
func TestUnansweredMessagesDelayNoOthers(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	name := t.Name() + "-out"
	f.stream(name, name)
	mute, err := f.js.Conn().Subscribe(t.Name()+"-mute", func(*nats.Msg) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Unsubscribe() }()
	publish := jetstream.Publisher(f.js)
	lost := make([]stet.Message, 500)
	for i := range lost {
		lost[i] = stet.Message{ID: stet.NewKey(), To: mute.Subject, Body: []byte("five books")}
	}
	for range 10 { // there may be 4,000 without an answer
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := publish(ctx, lost); err == nil {
			t.Error("published without an answer")
		}
		cancel()
	}
	if err := publish(t.Context(), []stet.Message{{ID: "id-1", To: name, Body: []byte("five books")}}); err != nil {
		t.Error(err)
	}
}
