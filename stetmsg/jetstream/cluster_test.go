package jetstream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
)

func TestKilledLeaderOfThreeServersLosesNoMessage(t *testing.T) {
	servers := rig.NewNATSCluster(t, 3)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL())
	}
	f := newFixture(t, strings.Join(urls, ","), js.ConsumerConfig{AckWait: 5 * time.Second, Replicas: 3})
	ran := map[string]int{} // f.mu guards it
	stop := f.run(func(ctx context.Context, _ js.Msg) ([]byte, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		ran[stet.FromContext(ctx).Op().Key]++
		return nil, nil
	})
	defer stop()
	handled := func(n int) func() bool {
		return func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(ran) >= n
		}
	}
	const n = 40
	for i := range n {
		if i == n/2 {
			f.until(handled(n / 4))
			stream, err := f.js.Stream(t.Context(), t.Name())
			if err != nil {
				t.Fatal(err)
			}
			leader := slices.IndexFunc(servers, func(s *rig.NATSServer) bool { return stream.CachedInfo().Cluster.Leader == s.Name() })
			if leader < 0 {
				t.Fatalf("the stream has the leader %q", stream.CachedInfo().Cluster.Leader)
			}
			if err := servers[leader].Kill(); err != nil {
				t.Fatal(err)
			}
		}
		f.publish(fmt.Sprint(i))
	}
	for i := range n {
		f.until(func() bool { return slices.Contains(f.reasons(fmt.Sprint(i)), stetmsg.Handled) })
	}
	stop()
	for id, times := range ran {
		if times != 1 {
			t.Errorf("message %s ran %d times", id, times)
		}
	}
}
