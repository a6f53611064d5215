package messages

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

const (
	relayAgain = 2 * time.Second // until messages are sent again whose relay was killed
	relayPoll  = 100 * time.Millisecond
	maxBatches = 3 // of which one relay is killed in the last
)

// readLetter undoes what the handler did.
func readLetter(id string, body []byte) (crashtest.Letter, error) {
	l := crashtest.Letter{ID: id}
	if err := json.Unmarshal(body, &l.Of); err != nil {
		return l, fmt.Errorf("a message that no run can have emitted has arrived: %w", err)
	}
	return l, nil
}

// relay relays until ctx ends. There is a place to die in the middle of a batch.
func (s *shop) relay(ctx context.Context) error {
	publish, done, err := trades[s.Broker].publisher(ctx, s.order)
	if err != nil {
		return err
	}
	defer done()
	r, err := stetmsg.NewRelay(s.engine, func(ctx context.Context, ms []stet.Message) error {
		first := len(ms) / 2
		if err := publish(ctx, ms[:first]); err != nil {
			return err
		}
		s.pass(half)
		return publish(ctx, ms[first:])
	}, stetmsg.RelayOptions{Batch: s.Batch, Again: relayAgain, Poll: relayPoll})
	if err != nil {
		return err
	}
	child.Ready(os.Stdout, "")
	return r.Run(ctx)
}

// relay is the next one. Relays that must be killed have batches so small that all
// of them together do not send all that there is.
func (s *loadTest) relay(_ *crashtest.Lane, v crashtest.Visit, _ int) (child.Command, error) {
	o := order{Broker: s.cfg.Broker, URL: s.broker.url(), Place: s.place, Visit: v, Batch: stetmsg.DefaultRelayBatch}
	if v.Point != "" {
		o.Batch = max(2, s.cfg.Messages/(4*s.cfg.RelayKills))
	}
	return child.Order(childEnv, o)
}

// drainRelays waits until the outbox is empty. A message that a relay is sending is not due
// until it is sent again. A message that is read here is due again at once.
func (s *loadTest) drainRelays(ctx context.Context, outbox store.OutboxStore) error {
	for seen := time.Now(); time.Since(seen) < 2*relayAgain; {
		recs, err := outbox.DueMessages(ctx, 1, time.Millisecond)
		if err != nil {
			return err
		}
		if len(recs) > 0 {
			seen = time.Now()
		}
		if err := crash.Pause(ctx, relayPoll); err != nil {
			return err
		}
	}
	return nil
}
