package jetstream_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet/internal/test/rig"
)

func (f *fixture) info() *js.ConsumerInfo {
	f.t.Helper()
	info, err := f.consumer.Info(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return info
}

func TestMessagesAreRequestedAhead(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) { return nil, nil })
	defer stop()
	for i := range 3 { // of the four that the first request is for
		f.publish(fmt.Sprint(i))
	}
	f.until(func() bool { return f.left(t.Name()) == 0 })
	f.until(func() bool { return f.info().NumWaiting > 1 })
}

func TestPrefetchLimitsRequests(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	begun, release := make(chan struct{}, 30), make(chan struct{})
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) {
		begun <- struct{}{}
		<-release
		return nil, nil
	})
	defer stop()
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	for i := range 30 {
		f.publish(fmt.Sprint(i))
	}
	for range 4 { // the consumer's Concurrency, half of its Prefetch
		<-begun
	}
	f.until(func() bool {
		info := f.info()
		if n := info.NumAckPending; n > 8 {
			t.Fatalf("%d messages are in flight", n)
		}
		return info.NumAckPending > 5 && info.NumWaiting == 0
	})
	let()
	f.until(func() bool { return f.left(t.Name()) == 0 })
}

func TestWaitingMessagesAreExtended(t *testing.T) {
	t.Parallel()
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{AckWait: 8 * time.Second})
	stop := f.run(func(context.Context, js.Msg) ([]byte, error) {
		time.Sleep(9 * time.Second) // so that those after the first four wait for longer than AckWait
		return nil, nil
	})
	defer stop()
	const n = 9
	for i := range n {
		f.publish(fmt.Sprint(i))
	}
	f.until(func() bool { return f.left(t.Name()) == 0 })
	stop()
	for i := range n {
		if reasons := f.reasons(fmt.Sprint(i)); len(reasons) != 1 {
			t.Errorf("message %d came %d times: %v", i, len(reasons), reasons)
		}
	}
}
