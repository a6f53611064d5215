// Package stetmsg makes redelivered messages safe: it runs the handler of a
// message once, acknowledges the message when its outcome is durable, and loses
// nothing.
//
//	consumer, err := stetmsg.NewTx(te, stetmsg.Options[amqp091.Delivery]{
//		Operation: stetmsg.By(amqp.Envelope, stetmsg.Header("orders", "message-id")),
//	}, func(ctx context.Context, tx pgx.Tx, m amqp091.Delivery) ([]byte, error) { … })
//
// A Consumer is independent of the broker. Packages amqp, jetstream, kafka and sqs receive
// messages, pass them to a Consumer and carry out its decision. For another broker, call
// Consumer.Decide, or implement Delivery and call Consumer.Handle.
//
// # Decisions
//
//	the store or the handler                 the message
//	new, handled                             acknowledge, once the outcome is durable
//	completed before                         acknowledge; Decision.Outcome has the result, for request-reply
//	failed before                            dead-letter: the first copy may not have arrived there
//	running elsewhere                        deliver later; never acknowledge
//	handler: nothing happened                release the claim, deliver later, with backoff
//	handler: nothing happened, and the       keep the message, and receive no more, until
//	  attempt does not count (Again)           Options.Await returns; without Await, deliver later
//	handler: any other error, in a           roll back, deliver later, with backoff
//	  transaction
//	handler: any other error, without one    settle as failed, dead-letter: an effect may have happened
//	handler: Permanent, or MaxAttempts used  settle as failed, dead-letter
//	delivered more than MaxAttempts times,   dead-letter, not executed and not settled: another message
//	  in a transaction                         may have killed the consumer each time
//	outcome unknown: an expired run, or      call Policy.Verify; while it cannot know, deliver later;
//	  declared by the handler                  without Verify, dead-letter: the record stays unknown
//	the record cannot be read                deliver later, with backoff; after MaxAttempts, dead-letter
//	same key, other content                  dead-letter, not executed
//	no identity                              dead-letter, not executed
//	no such class of operations              deliver later, with backoff; after MaxAttempts, dead-letter
//	store unavailable                        keep the message, and receive no more, until the store is back
//
// A message is acknowledged only after its outcome is stored. If the consumer crashes in
// between, the message is delivered again, and the store has the outcome.
//
// # Identity
//
// The key of a message is the ID that its producer gave it (Header, or package cloudevents),
// never the broker's own (a delivery tag, a stream's sequence, a Kafka offset, an SQS
// MessageId). When a publish times out, the producer publishes again, and the broker gives that
// copy another ID; only the producer knows that both are the same message. For producers
// without IDs there is Digest; read its warning.
package stetmsg

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
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
	// Operation returns the operation of a message: its scope, its key, and the
	// fingerprint of its content. By makes one of an Identity. An error or a panic
	// dead-letters the message.
	Operation func(M) (stet.Op, error)
	// Split, if set, returns the parts of a message that are separate operations, such as the
	// events of a CloudEvents batch. The message is acknowledged when all parts are done. If
	// one must be delivered again, all are, and finished parts do not run again. An error, a
	// panic, or an empty result dead-letters the message.
	Split func(M) ([]M, error)

	// Concurrency is how many messages are handled at a time, by Handle and so by the
	// packages of the brokers; others wait. Default DefaultConcurrency. With 1 they are
	// handled in the order in which they are received, unless one must be delivered
	// again.
	Concurrency int
	// Group, with NewTx and a store.GroupTxStore (PostgreSQL), is the maximum of messages that
	// share one transaction, one after the other. Only waiting messages are grouped.
	// One commit for all of them is faster for handlers that do little more than write. If one
	// of them fails, emits messages, or has a known key, each is handled in a separate
	// transaction. Receivers take Group more messages than Concurrency. At most
	// store.MaxGroup; default 1.
	Group int
	// MaxAttempts is how often a message is tried before its operation is settled as
	// failed and the message dead-lettered. In lease mode it counts runs. In a
	// transaction, which leaves no trace when it is rolled back, it counts the broker's
	// deliveries. These include deliveries that ended without a run, because the
	// message, or another one handled at the same time, killed the consumer, or because
	// it was running elsewhere. A message that has been delivered more than MaxAttempts
	// times is dead-lettered without being run or settled, because it may never have run. If
	// an operator puts it back, the broker counts from 1 and it is run. Default
	// DefaultMaxAttempts; negative: no limit.
	MaxAttempts int
	// Backoff returns how long a message has to wait after its n-th attempt,
	// from 1. Default: twice as long each time, from MinBackoff to MaxBackoff,
	// less up to half of it at random.
	Backoff func(n int) time.Duration
	// Retryable reports, in lease mode, that an error of the handler means no effect, or an
	// effect that may be repeated, so that the operation runs again. Default: none. An error
	// that is stet.Retryable or stet.Repeatable always does.
	Retryable func(error) bool

	// Await, if set, is called before each run, and returns when the dependencies of the
	// handler are available, for example a service. Until then the message and the messages
	// behind it are not acknowledged, as while the store is unavailable. It is also called for
	// a message whose outcome is unknown, before Policy.Verify is called again. It returns nil
	// at once if a run may begin now, also if ctx has ended, and an error if ctx ends before.
	Await func(ctx context.Context) error

	// Observe, if set, is called with each decision, before the broker is. It must be
	// quick and safe for concurrent use.
	Observe func(context.Context, Decision)
	// ErrorLog receives dead letters and other errors, with the text of the errors of
	// handlers, never a key or a body. Receivers log failed requests to it. Default slog.Default().
	ErrorLog *slog.Logger
}

// Consumer runs a handler at most once for each operation that messages ask for.
// It is safe for concurrent use.
type Consumer[M any] struct {
	engine *stet.Engine
	o      Options[M]
	slots  chan struct{} // a token for each message that is handled
	alone  chan struct{} // the same, if there are groups, for each that is in none
	// direct decides about a message in place of all that follows.
	direct func(ctx context.Context, m M, deliveries int) Decision
	// execute is lease or transaction.
	execute func(ctx context.Context, op stet.Op, m M, deliveries int) Decision
	// handle is lease mode's handler. Its outcome beside an error is settled if that is.
	handle func(context.Context, *stet.Lease, M) (stet.Outcome, error)
	// transact runs the handler in a transaction, or something instead.
	transact func(ctx context.Context, op stet.Op, m M, instead func() (stet.Outcome, error)) (*stet.Lease, error)
	// groups runs handlers in shared transactions; nil without Options.Group.
	groups *groups[M]
}

// New returns a consumer for a handler whose effects are outside of the engine's store.
// The result of handle is stored as the outcome, and returned for every later copy.
//
// An error of handle settles the operation as failed and dead-letters the message,
// because an effect may have happened before the error. If none did, handle returns an
// error that is stet.Retryable, or declares stet.NotExecuted (stet.FromContext);
// if that cannot be known, it declares stet.MayHaveExecuted. For a handler that is idempotent
// itself see Options.Retryable. A panic is an error, and logged.
//
// Wrong options are errors of kind stet.KindInvalid.
func New[M any](engine *stet.Engine, o Options[M], handle func(ctx context.Context, m M) (result []byte, err error)) (*Consumer[M], error) {
	c, err := newConsumer(engine, o, handle != nil)
	if err != nil {
		return nil, err
	}
	c.handle, c.execute = func(ctx context.Context, _ *stet.Lease, m M) (stet.Outcome, error) {
		result, err := handle(ctx, m)
		if err != nil {
			return stet.Outcome{}, err
		}
		return succeeded(result), nil
	}, c.lease
	return c, nil
}

// NewOutcome is New for a handler that passes messages on, for example to a service: the
// returned outcome is stored unchanged, and a message whose outcome is Failed is
// dead-lettered. An outcome beside an error is stored if the operation does not run again. The
// run is that of ctx; under stet.Policy.Outside it has the claim with which the service
// settles.
//
// Wrong options are errors of kind stet.KindInvalid.
func NewOutcome[M any](engine *stet.Engine, o Options[M], handle func(ctx context.Context, run *stet.Lease, m M) (stet.Outcome, error)) (*Consumer[M], error) {
	c, err := newConsumer(engine, o, handle != nil)
	if err != nil {
		return nil, err
	}
	c.handle, c.execute = handle, c.lease
	return c, nil
}

// Again marks an error of a handler in lease mode as stet.Retryable, and says how the
// message is tried again: not before After, whatever Options.Backoff has for it, which how
// is given. Failed does not count. An attempt that is Uncounted is not one of
// Options.MaxAttempts: see Options.Await. Again(nil, how) is nil.
func Again(err error, how func(backoff time.Duration) stet.Again) error {
	return again.Mark(err, how)
}

// NewTx is New for a handler whose effects are writes to the database of te. The handler's
// writes through tx and the outcome are one commit, after which the message is
// acknowledged. An error or a panic of handle rolls back, and the message is delivered
// again; Permanent makes it the outcome. The handler must not end the transaction, and must
// have no effects outside of it.
func NewTx[Tx, M any](te *stet.TxEngine[Tx], o Options[M], handle func(ctx context.Context, tx Tx, m M) (result []byte, err error)) (*Consumer[M], error) {
	if te == nil {
		return nil, misuse.Errorf("stetmsg: NewTx needs the result of stet.WithTx")
	}
	c, err := newConsumer(te.Engine(), o, handle != nil)
	if err != nil {
		return nil, err
	}
	c.execute = c.transaction
	c.transact = func(ctx context.Context, op stet.Op, m M, instead func() (stet.Outcome, error)) (*stet.Lease, error) {
		return te.Run(ctx, op, func(ctx context.Context, tx Tx) (stet.Outcome, error) {
			if instead != nil {
				return instead()
			}
			result, err := c.call(ctx, func() ([]byte, error) { return handle(ctx, tx, m) })
			if err != nil {
				return *c.failure(op.Class, err), err
			}
			return succeeded(result), nil
		})
	}
	if o.Group < 2 {
		return c, nil
	}
	if _, ok := store.As[store.GroupTxStore[Tx]](te.Store()); !ok {
		return nil, misuse.Errorf("stetmsg: Options.Group is %d, but the store %T has no transactions for more than one message", o.Group, te.Store())
	}
	if c.o.Concurrency > 1 {
		// The next group gathers while all others are being handled.
		c.slots, c.alone = make(chan struct{}, c.o.Concurrency+o.Group), make(chan struct{}, c.o.Concurrency)
	}
	c.groups = &groups[M]{size: o.Group, lanes: max(minLanes, c.o.Concurrency/o.Group), run: func(ctx context.Context, ops []stet.Op, ms []M) []*stet.Lease {
		return te.RunGroup(ctx, ops, func(ctx context.Context, tx Tx, i int) (stet.Outcome, error) {
			result, err := c.call(ctx, func() ([]byte, error) { return handle(ctx, tx, ms[i]) })
			return succeeded(result), err
		})
	}}
	return c, nil
}

// NewDirect returns a consumer that carries out the decisions of decide. It is for messages
// whose operations are stored elsewhere, such as those of stetwork/broker. deliveries
// is how often the message was delivered, this time included; Options.Operation,
// MaxAttempts, Backoff and Retryable are not used.
//
// Wrong options are errors of kind stet.KindInvalid.
func NewDirect[M any](o Options[M], decide func(ctx context.Context, m M, deliveries int) Decision) (*Consumer[M], error) {
	if decide == nil {
		return nil, misuse.Errorf("stetmsg: a consumer needs a function that decides")
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
		return nil, misuse.Errorf("stetmsg: a consumer needs an engine; stet.New makes one")
	case !handler:
		return nil, misuse.Errorf("stetmsg: a consumer needs a handler")
	case o.Operation == nil:
		return nil, misuse.Errorf("stetmsg: Options.Operation is required: it identifies messages; By makes one")
	}
	return newReceiving(engine, o)
}

// newReceiving returns a consumer that decides nothing yet.
func newReceiving[M any](engine *stet.Engine, o Options[M]) (*Consumer[M], error) {
	if o.Concurrency < 0 || o.Group < 0 || o.Group > store.MaxGroup {
		return nil, misuse.Errorf("stetmsg: Options.Concurrency is %d, Group %d; neither may be negative, nor Group above %d", o.Concurrency, o.Group, store.MaxGroup)
	}
	o.Concurrency = cmp.Or(o.Concurrency, DefaultConcurrency)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, DefaultMaxAttempts)
	if o.Backoff == nil {
		o.Backoff = backoff
	}
	return &Consumer[M]{engine: engine, o: o, slots: make(chan struct{}, o.Concurrency)}, nil
}

// Concurrency returns how many calls of Handle to make at a time: Options.Concurrency,
// and as many as Options.Group more, which wait for a transaction.
func (c *Consumer[M]) Concurrency() int { return cap(c.slots) }

func backoff(n int) time.Duration { return timer.Backoff(n, MinBackoff, MaxBackoff) }

// Log returns Options.ErrorLog or its default. Receivers use it.
func (c *Consumer[M]) Log() *slog.Logger {
	return cmp.Or(c.o.ErrorLog, slog.Default())
}
