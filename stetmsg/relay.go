package stetmsg

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

const (
	// DefaultRelayBatch is the default of RelayOptions.Batch.
	DefaultRelayBatch = 100
	// DefaultRelayAgain is the default of RelayOptions.Again.
	DefaultRelayAgain = 30 * time.Second
	// DefaultRelayPoll is the default of RelayOptions.Poll.
	DefaultRelayPoll = time.Second

	relayCalls = 8 // of the store at a time, to say what was sent
)

// IDHeader is the header in which the publishers of this module send the ID of a
// message, which is the same every time it is sent.
const IDHeader = "message-id"

// Publish sends messages, in this order where that means anything to the broker.
// It returns nil only if whoever is to keep them has said so, of all of them. The
// packages of the brokers have functions that return one.
type Publish func(ctx context.Context, messages []stet.Message) error

// RelayOptions configure a Relay. The zero value is usable.
type RelayOptions struct {
	// Batch is how many operations' messages are sent together, at most
	// stet.MaxBrowse. Default DefaultRelayBatch.
	Batch int
	// Again is how long it takes until messages are sent again whose sender has
	// not said that they have left: it died, or the broker refused them.
	// Publish is given half of that. Default DefaultRelayAgain.
	Again time.Duration
	// Poll is how often the store is asked when this process has emitted
	// nothing itself. Default DefaultRelayPoll.
	Poll time.Duration
	// ErrorLog gets what goes wrong, never a message. Default slog.Default().
	ErrorLog *slog.Logger
}

// Relay sends what operations have emitted (see stet.Run.Emit) and the engine's
// store keeps with their outcomes, until the broker has it. Any number of
// processes may run one; each message is sent at least once, with the same ID
// every time. Messages of one operation are sent in the order in which they were
// emitted; those of different operations in no order.
type Relay struct {
	engine  *stet.Engine
	publish Publish
	o       RelayOptions
}

// NewRelay returns a relay. Wrong options are errors of kind stet.ErrInvalid.
func NewRelay(engine *stet.Engine, publish Publish, o RelayOptions) (*Relay, error) {
	if engine == nil || publish == nil {
		return nil, invalid("a relay needs an engine and a function that publishes")
	}
	if _, ok := engine.Store().(stet.WorkStore); !ok {
		return nil, invalid("the store %T keeps no messages; memory, sqlite, postgres and redis do", engine.Store())
	}
	if o.Batch < 0 || o.Batch > stet.MaxBrowse || o.Again < 0 || o.Again > stet.MaxDelay || o.Poll < 0 {
		return nil, invalid("RelayOptions.Batch is %d, Again %v, Poll %v; Batch must be 0 to %d, Again at most %v, and none negative", o.Batch, o.Again, o.Poll, stet.MaxBrowse, stet.MaxDelay)
	}
	if o.Batch == 0 {
		o.Batch = DefaultRelayBatch
	}
	if o.Again == 0 {
		o.Again = DefaultRelayAgain
	}
	if o.Poll == 0 {
		o.Poll = DefaultRelayPoll
	}
	if o.ErrorLog == nil {
		o.ErrorLog = slog.Default()
	}
	return &Relay{engine, publish, o}, nil
}

// Run sends until ctx ends, and returns nil. What it has begun to send then is
// either sent or will be sent again.
func (r *Relay) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		arrived := r.engine.Arrived() // before looking, so that nothing is missed
		n, err := r.Once(ctx)
		if err != nil && ctx.Err() == nil {
			r.o.ErrorLog.WarnContext(ctx, "stetmsg: messages were not relayed; they will be tried again", slog.Any("error", err))
		}
		if err == nil && n == r.o.Batch {
			continue
		}
		wait := time.NewTimer(r.o.Poll/2 + rand.N(r.o.Poll))
		select {
		case <-wait.C:
		case <-arrived:
		case <-ctx.Done():
		}
		wait.Stop()
	}
	return nil
}

// Once sends what waits now, a batch at most. It returns how many operations'
// messages have left for good, and an error if others have not.
func (r *Relay) Once(ctx context.Context) (n int, err error) {
	parcels, err := r.engine.DueMessages(ctx, r.o.Batch, r.o.Again)
	if err != nil || len(parcels) == 0 {
		return 0, err
	}
	send, cancel := context.WithTimeout(ctx, r.o.Again/2)
	defer cancel()
	fault.At(fault.RelayBefore)
	var sent []stet.Parcel
	var together []stet.Message
	for _, p := range parcels {
		together = append(together, p.Messages...)
	}
	if err = r.publish(send, together); err == nil {
		sent = parcels
	} else if len(parcels) > 1 && send.Err() == nil {
		// One that is refused must not hold up the others.
		sent, err = r.oneByOne(send, parcels)
	}
	fault.At(fault.RelaySent)
	n, errRelayed := r.relayed(ctx, sent)
	fault.At(fault.RelayAfter)
	return n, errors.Join(err, errRelayed)
}

func (r *Relay) oneByOne(ctx context.Context, parcels []stet.Parcel) (sent []stet.Parcel, err error) {
	for _, p := range parcels {
		if ctx.Err() != nil {
			return sent, errors.Join(err, context.Cause(ctx))
		}
		if e := r.publish(ctx, p.Messages); e != nil {
			err = e // the last stands for the others
			continue
		}
		sent = append(sent, p)
	}
	return sent, err
}

// relayed tells the store, some calls at a time.
func (r *Relay) relayed(ctx context.Context, sent []stet.Parcel) (n int, err error) {
	next := make(chan stet.Parcel, len(sent))
	for _, p := range sent {
		next <- p
	}
	close(next)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range min(relayCalls, len(sent)) {
		wg.Go(func() {
			for p := range next {
				e := r.engine.Relayed(context.WithoutCancel(ctx), p)
				mu.Lock()
				if err = errors.Join(err, e); e == nil {
					n++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return n, err
}
