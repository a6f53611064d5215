package stetgrpc

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/intx"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/rpc"
)

// Interceptor protects the unary methods of a server. It is safe for concurrent use.
type Interceptor struct {
	engine     *stet.Engine
	o          Options
	retryAfter time.Duration
	transact   intx.Run // nil without transactions

	streams atomic.Bool // streaming methods are watched, or were checked
	vouched sync.Map    // by service: the error of vouch, or nil
	replies sync.Map    // by full method: func() proto.Message
	mapped  rpc.Maps
}

// adapter finds the transactions of this package.
const adapter intx.Adapter = "stetgrpc"

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
		return nil, misuse.Errorf("stetgrpc: NewTx needs the result of stet.WithTx")
	}
	i, err := New(te.Engine(), o)
	if err != nil {
		return nil, err
	}
	i.transact = intx.RunOf(te, adapter)
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

// Tx returns the transaction of a call that NewTx protects. It panics where there is
// none of type T: in methods that no NewTx for T protects, and for calls that passed
// without a key. For those stet.FromContext returns nil.
func Tx[T any](ctx context.Context) T {
	return intx.Of[T](ctx, adapter, "method protected by NewTx, and the call by a key?")
}

func (i *Interceptor) log() *slog.Logger { return cmp.Or(i.o.ErrorLog, slog.Default()) }
