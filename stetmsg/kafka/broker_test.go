package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/rig/topic"
	"github.com/stet-go/stet/stetmsg"
)

// These tests run on Apache Kafka. One broker has no transactions: by default their topic needs three.

// newBroker makes a fixture with topics of its own on a cluster.
func newBroker(t *testing.T, k *rig.Kafka) *fixture {
	t.Helper()
	f := newFixtureOn(t, k.Addrs(), rig.Named(t, ".")+".")
	f.await(func(ctx context.Context) error {
		return topic.Create(ctx, f.client, 2, int16(len(k.Servers)), f.options.Topics[0], f.options.DeadLetterTopic)
	})
	return f
}

// await calls do, which must return within patience.
func (f *fixture) await(do func(context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	if err := do(ctx); err != nil {
		f.t.Fatal(err)
	}
}

// done fails unless n records ran, each once, and their offsets are committed.
func (f *fixture) done(n int) {
	f.t.Helper()
	f.once(n)
	f.await(func(ctx context.Context) error {
		done, err := topic.Committed(ctx, f.client, f.options.Group, f.options.Topics[0])
		if err == nil && done != int64(n) {
			err = fmt.Errorf("%d offsets are committed; want %d", done, n)
		}
		return err
	})
}

// untilInFlight waits until a member has received a record that runs elsewhere.
func (f *fixture) untilInFlight() {
	f.t.Helper()
	f.await(func(ctx context.Context) error {
		for {
			f.mu.Lock()
			seen := slices.Contains(f.reasons, stetmsg.InFlight)
			f.mu.Unlock()
			if seen {
				return nil
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("no member has received a record in flight: %w", context.Cause(ctx))
			}
		}
	})
}

// held is a handler that blocks in the records held0 and held1.
func held() (h func(context.Context, string) error, begun, release chan struct{}) {
	begun, release = make(chan struct{}, 10), make(chan struct{})
	return func(_ context.Context, key string) error {
		if key == "held0" || key == "held1" {
			begun <- struct{}{}
			<-release
		}
		return nil
	}, begun, release
}

// member is the connection settings of a member that is considered dead after some seconds.
func member(more ...kgo.Opt) []kgo.Opt {
	return append(more, kgo.SessionTimeout(3*time.Second), kgo.HeartbeatInterval(500*time.Millisecond))
}

func TestReceiverOnOneBroker(t *testing.T) {
	k := rig.NewKafka(t, 1, nil)
	for _, c := range []struct {
		name string
		test func(*fixture, *rig.Kafka)
	}{
		{"a rebalance runs each record once", func(f *fixture, _ *rig.Kafka) { f.rebalance(100); f.done(100) }},
		{"a failed record is one dead letter", failedRecord},
		{"a record of a member that is cut off runs once", cutOffMember},
		{"a record of a member that is late for a rebalance runs once", lateMember},
		{"a killed broker loses no record", killedBroker}, // the last: the others do not expect it
	} {
		t.Run(c.name, func(t *testing.T) { c.test(newBroker(t, k), k) })
	}
}

func failedRecord(f *fixture, _ *rig.Kafka) {
	stop := f.run(f.receiver(func(_ context.Context, key string) error {
		if key == "bad" {
			return errors.New("no such book")
		}
		return nil
	}))
	defer stop()
	f.publish(0, "bad", "good")
	f.until(func(ran []string) bool { return len(ran) == 1 })
	stop()
	f.await(func(ctx context.Context) error {
		dead, err := topic.Ends(ctx, f.client, f.options.DeadLetterTopic)
		if err == nil && dead[0]+dead[1] != 1 {
			err = fmt.Errorf("%v dead letters; want one", dead)
		}
		return err
	})
}

func cutOffMember(f *fixture, _ *rig.Kafka) {
	network := new(mortal)
	h, begun, release := held()
	seeds := f.options.Client
	f.options.Client = member(slices.Concat(seeds, []kgo.Opt{kgo.Dialer(network.dial)})...)
	stop1 := f.run(f.receiver(h))
	defer stop1()
	f.publish(0, "held0", "a")
	<-begun
	network.die() // the run continues
	f.options.Client = member(slices.Clone(seeds)...)
	stop2 := f.run(f.receiver(h))
	defer stop2()
	f.untilInFlight()
	close(release)
	f.publish(0, "b")
	f.until(func(ran []string) bool { return len(ran) == 3 })
	stop2()
	f.done(3)
}

func lateMember(f *fixture, _ *rig.Kafka) {
	h, begun, release := held()
	// With this balancer a member gives up all partitions before it joins again. It waits for its runs.
	f.options.Client = append(f.options.Client, kgo.Balancers(kgo.RangeBalancer()), kgo.RebalanceTimeout(2*time.Second))
	stop1 := f.run(f.receiver(h))
	defer stop1()
	f.publish(0, "held0", "a")
	f.publish(1, "held1", "b")
	<-begun
	<-begun
	stop2 := f.run(f.receiver(h))
	defer stop2()
	f.untilInFlight()
	close(release)
	f.until(func(ran []string) bool { return len(ran) == 4 })
	stop1()
	stop2()
	f.once(4)
}

func killedBroker(f *fixture, k *rig.Kafka) {
	stop := f.run(f.receiver(ok))
	defer stop()
	const n = 40
	for i := range n {
		if i == n/2 {
			f.until(func(ran []string) bool { return len(ran) >= n/4 })
			if err := errors.Join(k.Servers[0].Kill(), k.Start(f.t.Context())); err != nil {
				f.t.Fatal(err)
			}
			f.await(func(ctx context.Context) error { return topic.Await(ctx, f.client, f.options.Topics[0]) })
		}
		f.publish(int32(i%2), fmt.Sprint(i))
	}
	f.until(func(ran []string) bool { return len(ran) == n })
	stop()
	f.done(n)
}

func TestKilledLeaderOfThreeBrokersLosesNoRecord(t *testing.T) {
	k := rig.NewKafka(t, 3, nil)
	f := newBroker(t, k)
	var stops []func()
	for range 2 {
		stop := f.run(f.receiver(ok))
		defer stop()
		stops = append(stops, stop)
	}
	const n = 60
	for i := range n {
		if i == n/2 {
			f.until(func(ran []string) bool { return len(ran) >= n/4 })
			leaders, err := topic.Leaders(t.Context(), f.client, f.options.Topics[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Servers[leaders[0]-1].Kill(); err != nil {
				t.Fatal(err)
			}
		}
		f.publish(int32(i%2), fmt.Sprint(i))
	}
	f.until(func(ran []string) bool { return len(ran) == n })
	for _, stop := range stops {
		stop()
	}
	f.done(n)
}
