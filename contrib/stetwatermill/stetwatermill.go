package stetwatermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/stetmsg"
)

// DefaultMaxPause is how long a message is held at most before it is nacked.
const DefaultMaxPause = 5 * time.Second

// Options configure a middleware. Operation and DeadLetter are required. The router decides how
// many messages are handled at a time, so Split, Concurrency and Group must not be set.
//
// If the scope of Operation is empty, it is the name of the router's handler: see UUID and By.
// In a transaction, MaxAttempts counts in this process, because Watermill does not say how often
// a message was delivered. A message that kills the process is not counted, so let the broker
// have a limit, too.
type Options struct {
	stetmsg.Options[*message.Message]
	// DeadLetter puts a message aside for people to look at; PoisonQueue makes one. It
	// returns nil only if the message is durable where it was put. After an error the
	// message is delivered again.
	DeadLetter func(ctx context.Context, m *message.Message, why stetmsg.Decision) error
	// MaxPause limits the wait of Backoff. Watermill has no delayed nack, and most pub/subs
	// deliver again at once, so the message and all behind it wait. Let it
	// be shorter than the broker waits for an acknowledgement. Default DefaultMaxPause;
	// negative: no pause.
	MaxPause time.Duration
}

// RetryError is the router's error for a message that must be delivered again.
type RetryError struct {
	Decision stetmsg.Decision
}

// Error implements error.
func (e *RetryError) Error() string {
	if e.Decision.Err == nil {
		return "stetwatermill: to be delivered again: " + string(e.Decision.Reason)
	}
	return fmt.Sprintf("stetwatermill: to be delivered again: %s: %v", e.Decision.Reason, e.Decision.Err)
}

// Unwrap returns what went wrong.
func (e *RetryError) Unwrap() error { return e.Decision.Err }

// Middleware returns a middleware for handlers whose effects are outside of the engine's
// store: for the router, or for one handler. The context of the message has the run
// (stet.FromContext) while the handler runs.
//
// Wrong options are errors of kind stet.KindInvalid.
func Middleware(engine *stet.Engine, o Options) (message.HandlerMiddleware, error) {
	wrap := func(h message.HandlerFunc) (*guard, error) {
		g, err := newGuard(engine, o)
		if err != nil {
			return nil, err
		}
		g.consumer, err = stetmsg.New(engine, g.options(), func(ctx context.Context, d *delivery) ([]byte, error) {
			return d.run(ctx, func() ([]*message.Message, error) { return h(d.m) })
		})
		return g, err
	}
	if _, err := wrap(nil); err != nil {
		return nil, err
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		g, err := wrap(h)
		if err != nil { // not reached: it was tried above
			return func(*message.Message) ([]*message.Message, error) { return nil, err }
		}
		return g.handle
	}, nil
}

// HandleTx returns a handler for the router whose effects are writes to the database of te.
// Its writes through tx, the outcome, and the messages that it returns are one commit, after
// which the router publishes them. An error or a panic rolls back, and the message is
// delivered again; stet.Permanent makes it the outcome. h must not end the transaction, and
// must have no effects outside of it.
//
// Wrong options are errors of kind stet.KindInvalid.
func HandleTx[Tx any](te *stet.TxEngine[Tx], o Options, h func(m *message.Message, tx Tx) ([]*message.Message, error)) (message.HandlerFunc, error) {
	switch {
	case te == nil:
		return nil, misuse.Errorf("stetwatermill: HandleTx needs what stet.WithTx makes")
	case h == nil:
		return nil, misuse.Errorf("stetwatermill: HandleTx needs a handler")
	}
	g, err := newGuard(te.Engine(), o)
	if err != nil {
		return nil, err
	}
	g.consumer, err = stetmsg.NewTx(te, g.options(), func(ctx context.Context, tx Tx, d *delivery) ([]byte, error) {
		return d.run(ctx, func() ([]*message.Message, error) { return h(d.m, tx) })
	})
	if err != nil {
		return nil, err
	}
	return g.handle, nil
}

// guard is around one handler.
type guard struct {
	engine   *stet.Engine
	consumer *stetmsg.Consumer[*delivery]
	o        Options
	tried    attempts
}

func newGuard(engine *stet.Engine, o Options) (*guard, error) {
	switch {
	case engine == nil:
		return nil, misuse.Errorf("stetwatermill: an engine is needed; stet.New makes one")
	case o.Operation == nil:
		return nil, misuse.Errorf("stetwatermill: Options.Operation is required: it identifies messages; stetwatermill.UUID is one, and By makes others")
	case o.Split != nil || o.Concurrency != 0 || o.Group != 0:
		return nil, misuse.Errorf("stetwatermill: Options.Split, Concurrency and Group have no effect here, so they must not be set")
	case o.DeadLetter == nil:
		return nil, misuse.Errorf("stetwatermill: Options.DeadLetter is required: without it, a message that must not be handled would come again permanently; PoisonQueue makes one from a publisher and a topic that is not empty")
	}
	o.MaxPause = cmp.Or(o.MaxPause, DefaultMaxPause)
	return &guard{engine: engine, o: o}, nil
}

// options are those of the consumer.
func (g *guard) options() stetmsg.Options[*delivery] {
	return stetmsg.Options[*delivery]{
		Operation:   func(d *delivery) (stet.Op, error) { return d.op, d.err },
		MaxAttempts: g.o.MaxAttempts, Backoff: g.o.Backoff, Retryable: g.o.Retryable, Await: g.o.Await, Observe: g.o.Observe, ErrorLog: g.o.ErrorLog,
	}
}

// handle is the handler that the router calls.
func (g *guard) handle(m *message.Message) ([]*message.Message, error) {
	returned := false
	defer func() {
		if !returned { // by runtime.Goexit; else the subscriber would wait permanently
			m.Nack()
		}
	}()
	ctx := m.Context()
	if ctx.Err() != nil {
		// That of a publisher that has left (PreserveContext of gochannel): it would come
		// again with the same. Handlers of the router run all the same.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(g.o.MaxPause, DefaultMaxPause))
		defer cancel()
		ctx = bounded
	}
	g.early(ctx, m)
	d := g.delivery(ctx, m)
	if run := stet.FromContext(ctx); run != nil && d.err == nil && run.ID() == d.id {
		returned = true
		return nil, stet.Retryable(errTwice) // so that the outer one settles nothing
	}
	decision := g.consumer.Decide(ctx, d, g.tried.of(d.id)+1)
	g.tried.note(d.id, decision)
	produced, err := g.tell(ctx, d, decision)
	if err != nil {
		if acked(m) {
			g.consumer.Log().ErrorContext(ctx, "stetwatermill: the message must be delivered again, but is lost: it was acknowledged before its outcome was durable, by its handler or by a middleware such as InstantAck. Leave that to the router",
				slog.String("handler", d.handler), slog.String("id", d.id.String()), slog.String("reason", string(decision.Reason)))
		}
		g.pause(ctx, decision)
	}
	returned = true
	return produced, err
}

// acked reports whether a message was acknowledged.
func acked(m *message.Message) bool {
	select {
	case <-m.Acked():
		return true
	default:
		return false
	}
}

var errTwice = misuse.Errorf("stetwatermill: this operation runs already, in the middleware that is around this one: have it on the router or on the handler, not on both, and not around HandleTx")

// early logs that a message was acknowledged before it was handled: by InstantAck, or
// by a similar middleware. It is still handled, because it does not come again.
func (g *guard) early(ctx context.Context, m *message.Message) {
	if acked(m) {
		g.consumer.Log().ErrorContext(ctx, "stetwatermill: the message was acknowledged before it was handled; if this run fails, or the process dies, it is lost. Remove InstantAck and similar middleware from the router",
			slog.String("handler", message.HandlerNameFromCtx(ctx)))
	}
}

// delivery is m with its operation.
func (g *guard) delivery(ctx context.Context, m *message.Message) *delivery {
	d := &delivery{m: m, handler: message.HandlerNameFromCtx(ctx)}
	d.op, d.err = g.operation(m)
	if d.err == nil && d.op.Scope == "" {
		if d.op.Scope = d.handler; d.op.Scope == "" {
			d.err = errors.New("the identity has no scope, and the message does not come from a router, whose handler's name would be one: give the identity a scope")
		}
	}
	if d.err == nil {
		d.id = g.engine.ID(d.op.Scope, d.op.Key)
	}
	if p, ok := g.engine.Policy(d.op.Class); ok {
		d.most = p.MaxResult - overhead
	}
	return d
}

// operation asks Options.Operation. A message that makes it panic must not kill the process,
// as it would kill the next one, too.
func (g *guard) operation(m *message.Message) (op stet.Op, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("Options.Operation panicked: %v", v)
		}
	}()
	return g.o.Operation(m)
}

// tell returns the result for the router.
func (g *guard) tell(ctx context.Context, d *delivery, decision stetmsg.Decision) ([]*message.Message, error) {
	var produced []*message.Message
	if decision.Action == stetmsg.Ack {
		if decision.Reason == stetmsg.Handled {
			for _, p := range d.produced {
				if p.Context().Err() != nil { // that of the run, which has ended; publishers would refuse it
					p.SetContext(context.WithoutCancel(p.Context()))
				}
			}
			return d.produced, nil
		}
		var err error
		if produced, err = g.replayed(ctx, d, decision.Outcome); err == nil {
			return produced, nil
		}
		g.consumer.Log().ErrorContext(ctx, "stetwatermill: not acknowledged", slog.String("id", decision.ID.String()), slog.Any("error", err))
		decision.Action, decision.Reason, decision.Err = stetmsg.DeadLetter, stetmsg.Mismatch, err
	}
	if decision.Action == stetmsg.DeadLetter {
		err := g.deadLetter(ctx, d.m, decision)
		if err == nil {
			return nil, nil
		}
		g.consumer.Log().ErrorContext(ctx, "stetwatermill: the message could not be put aside, and will be delivered again", slog.String("id", decision.ID.String()), slog.Any("error", err))
		decision.Err = errors.Join(decision.Err, err)
	}
	return nil, &RetryError{decision}
}

// deadLetter calls Options.DeadLetter. A publisher that panics has published nothing.
func (g *guard) deadLetter(ctx context.Context, m *message.Message, decision stetmsg.Decision) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("Options.DeadLetter panicked: %v", v)
		}
	}()
	return g.o.DeadLetter(context.WithoutCancel(ctx), m, decision)
}

// pause holds a message that must be delivered again, until the router closes at most.
func (g *guard) pause(ctx context.Context, decision stetmsg.Decision) {
	after := decision.After
	if decision.Action == stetmsg.DeadLetter { // which could not be put aside
		after = stetmsg.MinBackoff
	}
	if after = min(after, g.o.MaxPause); after > 0 {
		timer.Sleep(ctx, after)
	}
}
