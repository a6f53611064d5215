// Package stetmsg makes redelivered messages safe: it runs the handler of a
// message once, acknowledges the message when its outcome is durable, and loses
// nothing.
//
//	consumer, err := stetmsg.NewTx(engine, store, stetmsg.Options[amqp091.Delivery]{
//		Operation: stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")),
//	}, func(ctx context.Context, tx pgx.Tx, m amqp091.Delivery) ([]byte, error) { … })
//
// A Consumer knows no broker. Packages amqp, jetstream, kafka and sqs receive
// messages, hand them to a Consumer and tell the broker what it decided; with
// another broker, call Consumer.Decide, or implement Delivery and call
// Consumer.Handle.
//
// # What becomes of a message
//
//	what the store says, or the handler      what the broker is told
//	new, handled                             acknowledge, once the outcome is durable
//	completed before                         acknowledge; Decision.Outcome has the result, for request-reply
//	failed before                            dead-letter: the first copy may not have got there
//	running elsewhere                        deliver later; never acknowledge
//	handler: nothing happened                release the claim, deliver later, with backoff
//	handler: any other error, in a           roll back, deliver later, with backoff
//	  transaction
//	handler: any other error, without one    settle as failed, dead-letter: an effect may have happened
//	handler: Permanent, or MaxAttempts used  settle as failed, dead-letter
//	delivered more than MaxAttempts times,   dead-letter, not executed and not settled: a neighbour
//	  in a transaction                         may have killed the consumer each time
//	outcome unknown, of a dead run or by     ask Policy.Verify; while it cannot tell, deliver later;
//	  the handler's word                       without one, dead-letter: the record stays unknown
//	same key, other content                  dead-letter, not executed
//	no identity                              dead-letter, not executed
//	store unavailable                        keep the message in hand, and so receive no more, until it is
//
// Nothing is marked before it is handled: a handler that failed once is run
// again, and a consumer that dies between the two leaves a message that will be
// delivered again and a store that knows what became of it.
//
// # Identity
//
// A message is known by the id that its producer gave it (Header, or package
// cloudevents), never by the broker's own (a delivery tag, a stream's sequence,
// a Kafka offset, an SQS MessageId). A broker's id tells apart copies that the
// broker made; a producer whose publish timed out publishes again, and the
// broker gives that copy another id. Only the producer knows that both are one.
// Where a producer gives no id there is Digest, with its warning.
package stetmsg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
)

const (
	// DefaultConcurrency is how many messages are handled at a time.
	DefaultConcurrency = 16
	// DefaultMaxAttempts is how often a message is tried.
	DefaultMaxAttempts = 10
	// MinBackoff and MaxBackoff bound the default of Options.Backoff.
	MinBackoff = time.Second
	MaxBackoff = 5 * time.Minute // see MinBackoff
)

// Options configure a Consumer. Operation is required; the zero value of every
// other field stands for its default.
type Options[M any] struct {
	// Operation says which operation a message asks for: whose it is, its key,
	// and the fingerprint of what it asks for. By makes one of an Identity. An
	// error dead-letters the message.
	Operation func(M) (stet.Op, error)
	// Split, if set, returns the parts of a message that are operations of
	// their own, such as the events of a CloudEvents batch. The message is
	// acknowledged when all parts are done. If one has to be delivered again,
	// all are, and those that are done are not run again. An error
	// dead-letters the message.
	Split func(M) ([]M, error)

	// Concurrency is how many messages are handled at a time, by Handle and so
	// by the packages of the brokers; others wait in hand. Default
	// DefaultConcurrency. With 1 they are handled in the order in which they
	// are received, unless one has to be delivered again.
	Concurrency int
	// Group, with NewTx and a store that can do it (PostgreSQL's), is how many
	// messages are handled in one transaction at most, one after the other:
	// those that wait while others are being handled. One commit for all of
	// them makes handlers fast that do little more than write. If one of them
	// fails, emits messages, or its key is known already, each is handled in a
	// transaction of its own. So that groups fill, receivers hand over as many
	// messages more than Concurrency. At most stet.MaxGroup; default 1.
	Group int
	// MaxAttempts is how often a message is tried before its operation is
	// settled as failed and the message dead-lettered. In lease mode it counts
	// runs. In a transaction, which leaves no trace when it is rolled back, it
	// counts the broker's deliveries, and with them those that came to nothing
	// because the message, or another one that was in hand with it, killed the
	// consumer, or because it was running elsewhere. A message that has been
	// delivered more than MaxAttempts times is dead-lettered without being
	// run, and without being settled, as it may never have run: put back by an
	// operator, so that the broker counts from 1, it is run. Default
	// DefaultMaxAttempts; negative: no limit.
	MaxAttempts int
	// Backoff returns how long a message has to wait after its n-th attempt,
	// from 1. Default: twice as long each time, from MinBackoff to MaxBackoff,
	// less up to half of it at random.
	Backoff func(n int) time.Duration
	// Retryable says of a handler's error, in lease mode, that the handler had
	// no effect, or one that may be repeated, so that it is run again. Default:
	// errors that wrap stet.ErrRetryable, but not those of another operation
	// (see stet.Do).
	Retryable func(error) bool

	// Observe, if set, is told what each message came to, before the broker
	// is. It must be quick and safe for concurrent use.
	Observe func(context.Context, Decision)
	// ErrorLog gets what is dead-lettered and what goes wrong; never a key or
	// a body, but the text of handlers' errors. Default slog.Default().
	ErrorLog *slog.Logger
}

// Consumer runs a handler at most once for each operation that messages ask for.
// It is safe for concurrent use.
type Consumer[M any] struct {
	engine *stet.Engine
	o      Options[M]
	slots  chan struct{} // a token for each message that is handled
	alone  chan struct{} // likewise, if there are groups, for each that is in none
	span   atomic.Pointer[span]
	// direct decides about a message in place of all that follows.
	direct func(ctx context.Context, m M, deliveries int) Decision
	// execute is lease or transaction.
	execute func(ctx context.Context, op stet.Op, m M, deliveries int) Decision
	// handle is lease mode's handler.
	handle func(context.Context, M) ([]byte, error)
	// transact runs the handler in a transaction, or something instead.
	transact func(ctx context.Context, op stet.Op, m M, instead func() (stet.Outcome, error)) (*stet.Run, error)
	// groups has handlers run together; nil if they are not to.
	groups *groups[M]
}

// New returns a consumer for a handler whose effects are outside of the engine's
// store. What handle returns is stored as the outcome and handed out again.
//
// An error of handle settles the operation as failed and dead-letters the
// message, because an effect may have happened before the error. Where it is
// known that none did, handle returns an error that wraps stet.ErrRetryable, or
// calls stet.FromContext(ctx).NothingHappened; where nobody can know, it calls
// OutcomeUnknown. For a handler that is idempotent itself see Options.Retryable. A panic is an error, and logged.
//
// Wrong options are errors of kind stet.ErrInvalid.
func New[M any](engine *stet.Engine, o Options[M], handle func(ctx context.Context, m M) (result []byte, err error)) (*Consumer[M], error) {
	c, err := newConsumer(engine, o, handle != nil)
	if err != nil {
		return nil, err
	}
	c.handle, c.execute = handle, c.lease
	return c, nil
}

// NewTx is New for a handler whose effects are writes to store, which must be
// the engine's. The handler's writes through tx and the outcome are one commit,
// after which the message is acknowledged. An error or a panic of handle rolls
// back, and the message is delivered again; Permanent makes it the outcome. The
// handler must not end the transaction, and must have no effects outside of it.
func NewTx[Tx, M any](engine *stet.Engine, store stet.TxStore[Tx], o Options[M], handle func(ctx context.Context, tx Tx, m M) (result []byte, err error)) (*Consumer[M], error) {
	c, err := newConsumer(engine, o, handle != nil)
	switch {
	case err != nil:
		return nil, err
	case store == nil:
		return nil, invalid("NewTx needs the engine's store")
	case reflect.TypeOf(store).Comparable() && engine.Store() != stet.Store(store):
		return nil, invalid("NewTx needs the store that stet.New was given, not another one")
	}
	c.execute = c.transaction
	c.transact = func(ctx context.Context, op stet.Op, m M, instead func() (stet.Outcome, error)) (*stet.Run, error) {
		return stet.RunTx(ctx, engine, store, op, func(ctx context.Context, tx Tx) (stet.Outcome, error) {
			if instead != nil {
				return instead()
			}
			result, err := c.call(ctx, func() ([]byte, error) { return handle(ctx, tx, m) })
			return stet.Outcome{State: stet.Completed, Result: result}, err
		})
	}
	if o.Group < 2 {
		return c, nil
	}
	together, ok := store.(stet.GroupTxStore[Tx])
	if !ok {
		return nil, invalid("Options.Group is %d, but the store %T has no transactions for more than one message", o.Group, store)
	}
	if c.o.Concurrency > 1 {
		// So that the next group gathers while all others are being handled.
		c.slots, c.alone = make(chan struct{}, c.o.Concurrency+o.Group), make(chan struct{}, c.o.Concurrency)
	}
	c.groups = &groups[M]{size: o.Group, lanes: max(minLanes, c.o.Concurrency/o.Group), run: func(ctx context.Context, ops []stet.Op, ms []M) []*stet.Run {
		return stet.RunGroup(ctx, engine, together, ops, func(ctx context.Context, tx Tx, i int) (stet.Outcome, error) {
			result, err := c.call(ctx, func() ([]byte, error) { return handle(ctx, tx, ms[i]) })
			return stet.Outcome{State: stet.Completed, Result: result}, err
		})
	}}
	return c, nil
}

// NewDirect returns a consumer that does with each message what decide says, for
// messages that ask for something that is kept exactly once elsewhere, as
// stetwork/broker's do. decide is given how often the message was delivered, this
// time included; Options.Operation, MaxAttempts, Backoff and Retryable are not
// used.
//
// Wrong options are errors of kind stet.ErrInvalid.
func NewDirect[M any](o Options[M], decide func(ctx context.Context, m M, deliveries int) Decision) (*Consumer[M], error) {
	if decide == nil {
		return nil, invalid("a consumer needs a function that decides")
	}
	c, err := newReceiving(nil, o)
	if err != nil {
		return nil, err
	}
	c.direct = decide
	return c, nil
}

func newConsumer[M any](engine *stet.Engine, o Options[M], handler bool) (*Consumer[M], error) {
	switch {
	case engine == nil:
		return nil, invalid("a consumer needs an engine; stet.New makes one")
	case !handler:
		return nil, invalid("a consumer needs a handler")
	case o.Operation == nil:
		return nil, invalid("Options.Operation is required: it says which messages are the same; By makes one")
	}
	return newReceiving(engine, o)
}

// newReceiving returns a consumer that decides nothing yet.
func newReceiving[M any](engine *stet.Engine, o Options[M]) (*Consumer[M], error) {
	if o.Concurrency < 0 || o.Group < 0 || o.Group > stet.MaxGroup {
		return nil, invalid("Options.Concurrency is %d, Group %d; neither may be negative, nor Group above %d", o.Concurrency, o.Group, stet.MaxGroup)
	}
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = DefaultMaxAttempts
	}
	if o.Backoff == nil {
		o.Backoff = backoff
	}
	if o.Retryable == nil {
		o.Retryable = func(err error) bool {
			_, theirs := errors.AsType[*stet.Error](err)
			return !theirs && errors.Is(err, stet.ErrRetryable)
		}
	}
	return &Consumer[M]{engine: engine, o: o, slots: make(chan struct{}, o.Concurrency)}, nil
}

// Concurrency returns how many messages Handle is to be called with at a time:
// Options.Concurrency, and another Options.Group that wait for a transaction.
func (c *Consumer[M]) Concurrency() int { return cap(c.slots) }

func backoff(n int) time.Duration {
	d := MaxBackoff
	if n < 10 {
		d = min(MinBackoff<<max(n-1, 0), MaxBackoff)
	}
	return d - rand.N(d/2)
}

func (c *Consumer[M]) log() *slog.Logger {
	if c.o.ErrorLog != nil {
		return c.o.ErrorLog
	}
	return slog.Default()
}

func invalid(format string, args ...any) error {
	return &stet.Error{Kind: stet.ErrInvalid, Execution: stet.NotExecuted, Cause: fmt.Errorf("stetmsg: "+format, args...)}
}
