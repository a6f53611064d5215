package messages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

const (
	relayAgain = 2 * time.Second // until messages are sent again whose relay was killed
	relayPoll  = 100 * time.Millisecond
	maxBatches = 3 // of which one relay is killed in the last
)

// letter is the body of what is emitted.
type letter struct {
	ID    string `json:"-"` // of the message
	Order string
	Nonce string
}

// readLetter undoes what the handler did.
func readLetter(id string, body []byte) (letter, error) {
	l := letter{ID: id}
	if err := json.Unmarshal(body, &l); err != nil {
		return l, fmt.Errorf("a message that nobody can have emitted has arrived: %w", err)
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
	ready()
	return r.Run(ctx)
}

// relay is the i-th that is to be killed. Batches are so small that all of them
// together do not send all that there is.
func (s *storm) relay(rng *rand.Rand, i int) order {
	o := order{Broker: s.cfg.Broker, URL: s.broker.url(), Place: s.place, Point: relayPoints[i%len(relayPoints)], Visit: 1 + rng.IntN(maxBatches), Patience: reachTimeout}
	o.Batch = max(2, s.cfg.Messages/(4*s.cfg.RelayKills))
	if o.Point == anywhere {
		o.Patience = time.Duration(rng.Int64N(int64(500 * time.Millisecond)))
	}
	return o
}

// drainRelays has relays that nobody kills until the outbox is empty.
func (s *storm) drainRelays(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("the relays did not come to an end"))
	defer cancel()
	site, err := s.place.open(ctx, 4)
	if err != nil {
		return err
	}
	stop, err := s.unharmed(ctx, func(int) order {
		return order{Broker: s.cfg.Broker, URL: s.broker.url(), Place: s.place, Batch: stetmsg.DefaultRelayBatch}
	})
	if err != nil {
		return errors.Join(err, site.close())
	}
	// What a relay has in hand is not due until it is sent again. What is seen
	// here is due again at once.
	for seen := time.Now(); err == nil && ctx.Err() == nil && time.Since(seen) < 2*relayAgain; pause(ctx, relayPoll) {
		var recs []stet.Record
		if recs, err = site.store.Due(ctx, stet.DueRelay, 1, time.Millisecond); len(recs) > 0 {
			seen = time.Now()
		}
	}
	stop()
	return errors.Join(err, context.Cause(ctx), site.close())
}
