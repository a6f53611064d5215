package jetstream_test

import (
	"context"
	"fmt"
	"testing"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet/internal/rig"
)

func (f *fixture) info() *js.ConsumerInfo {
	f.t.Helper()
	info, err := f.consumer.Info(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return info
}

func TestNextRequestIsOnItsWayBeforeTheLastIsFilled(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) { return nil, nil })
	defer stop()
	for i := range 4 { // of the eight that the first request has room for
		f.publish(fmt.Sprint(i))
	}
	f.until(func() bool { return f.left(t.Name()) == 0 })
	f.until(func() bool { return f.info().NumWaiting > 1 })
}

func TestNoMoreIsAskedForThanThereIsRoomFor(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	begun, release := make(chan struct{}, 30), make(chan struct{})
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) {
		begun <- struct{}{}
		<-release
		return nil, nil
	})
	defer stop()
	for i := range 30 {
		f.publish(fmt.Sprint(i))
	}
	for range 4 { // the consumer's Concurrency, half of its Prefetch
		<-begun
	}
	f.until(func() bool {
		info := f.info()
		if n := info.NumAckPending; n > 8 {
			t.Fatalf("%d messages are in hand", n)
		}
		return info.NumAckPending == 8 && info.NumWaiting == 0
	})
	close(release)
	f.until(func() bool { return f.left(t.Name()) == 0 })
}
