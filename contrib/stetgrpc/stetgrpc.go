package stetgrpc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
)

// Interceptor protects the unary methods of a server. It is safe for concurrent use.
type Interceptor struct {
	engine     *stet.Engine
	o          Options
	retryAfter time.Duration
	transact   transactFunc // nil without transactions

	streams atomic.Bool // streaming methods are watched, or were checked
	vouched sync.Map    // by service: the error of vouch, or nil
	replies sync.Map    // by full method: func() proto.Message
	mapped  sync.Map    // by descriptor: whether a message may have a map
}

// transactFunc is stet.TxEngine.Run with its transaction type tucked away.
type transactFunc func(context.Context, stet.Op, func(context.Context) (stet.Outcome, error)) (*stet.Lease, error)

// New returns an interceptor over engine, for handlers whose effects are outside of the
// engine's store. Wrong options are errors of kind stet.KindInvalid.
func New(engine *stet.Engine, o Options) (*Interceptor, error) {
	if engine == nil {
		return nil, misuse.Errorf("stetgrpc: New needs an engine; stet.New makes one")
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Interceptor{engine: engine, o: o, retryAfter: retryAfter}, nil
}

// NewTx is New for handlers whose effects are writes to the database of te: Tx returns
// the transaction in the handler, and the response is sent only after the commit. A status
// other than OK, a panic and Run.Declare roll it back. INVALID_ARGUMENT, NOT_FOUND,
// ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE and an error that is stet.Permanent are
// then stored in a second transaction, and retries receive them. After any other status
// nothing is stored, and a retry runs again. If the commit finds that another
// transaction wrote the record in the meantime, the handler may be called again for the same
// call. It must not end the transaction, and must have no effects outside of it.
func NewTx[T any](te *stet.TxEngine[T], o Options) (*Interceptor, error) {
	if te == nil {
		return nil, misuse.Errorf("stetgrpc: NewTx needs what stet.WithTx makes")
	}
	i, err := New(te.Engine(), o)
	if err != nil {
		return nil, err
	}
	i.transact = func(ctx context.Context, op stet.Op, fn func(context.Context) (stet.Outcome, error)) (*stet.Lease, error) {
		return te.Run(ctx, op, func(ctx context.Context, tx T) (stet.Outcome, error) {
			return fn(&txContext[T]{ctx, tx})
		})
	}
	return i, nil
}

// Must returns v, or panics if err is not nil. It is for wiring that cannot continue
// without.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ServerOptions returns both interceptors, Unary and Stream, as options of grpc.NewServer,
// after interceptors that were chained before. Chain authentication, which Scope needs, before
// them.
func (i *Interceptor) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(i.Unary()), grpc.ChainStreamInterceptor(i.Stream())}
}

// txContext is a context that has a transaction of type T.
type txContext[T any] struct {
	context.Context
	tx T
}

// txKey finds the transaction of type T, txType the type of the innermost one.
type (
	txKey[T any] struct{}
	txType       struct{}
)

// Value implements context.Context.
func (c *txContext[T]) Value(key any) any {
	switch key.(type) {
	case txKey[T]:
		return c.tx
	case txType:
		return reflect.TypeFor[T]()
	default:
		return c.Context.Value(key)
	}
}

// Tx returns the transaction of a call that NewTx protects. It panics where there is
// none of type T: in methods that no NewTx for T protects, and for calls that passed
// without a key. For those stet.FromContext returns nil.
func Tx[T any](ctx context.Context) T {
	if tx, ok := ctx.Value(txKey[T]{}).(T); ok {
		return tx
	}
	if other, ok := ctx.Value(txType{}).(reflect.Type); ok {
		panic(fmt.Sprintf("stetgrpc: the transaction in this context is a %v, not a %v: call Tx[%v], or give stet.New and NewTx a store whose transactions are of type %v (for PostgreSQL, postgres.OverSQL makes one)",
			other, reflect.TypeFor[T](), other, reflect.TypeFor[T]()))
	}
	panic(fmt.Sprintf("stetgrpc: no transaction of type %v in this context: is the method protected by NewTx, and the call by a key?", reflect.TypeFor[T]()))
}

func (i *Interceptor) log() *slog.Logger { return cmp.Or(i.o.ErrorLog, slog.Default()) }
