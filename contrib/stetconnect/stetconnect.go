package stetconnect

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"connectrpc.com/connect"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/intx"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/rpc"
)

// Interceptor protects the unary procedures of the handlers that it is given to, by
// connect.WithInterceptors. It is safe for concurrent use, and may protect any number of
// handlers.
type Interceptor struct {
	engine     *stet.Engine
	o          Options
	retryAfter time.Duration
	// transact is nil without transactions.
	transact intx.Run
	types    types
}

var _ connect.Interceptor = (*Interceptor)(nil)

// adapter finds the transactions of this package.
const adapter intx.Adapter = "stetconnect"

// New returns an interceptor over engine, for handlers whose effects are outside of the
// engine's store. Wrong options are errors of kind stet.KindInvalid, here and not at the
// first call.
func New(engine *stet.Engine, o Options) (*Interceptor, error) {
	if engine == nil {
		return nil, misuse.Errorf("stetconnect: New needs an engine; stet.New makes one")
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Interceptor{engine: engine, o: o, retryAfter: retryPause}, nil
}

// NewTx is New for handlers whose effects are writes to the database of te: Tx gives the
// handler its transaction, and its response is sent only after the commit. An error of the
// handler, a panic and Run.Declare roll the transaction back. An error with the code
// invalid_argument, not_found, already_exists, failed_precondition or out_of_range, and an error
// that is stet.Permanent, is then stored in a second transaction, and retries receive it.
// After any other error nothing is stored, and a retry runs again. If the commit finds that another transaction wrote the
// record in the meantime, the handler may be called again for the same call, with a new
// transaction. The handler must not end the transaction, and must have no effects outside
// of it.
func NewTx[T any](te *stet.TxEngine[T], o Options) (*Interceptor, error) {
	if te == nil {
		return nil, misuse.Errorf("stetconnect: NewTx needs the result of stet.WithTx")
	}
	i, err := New(te.Engine(), o)
	if err != nil {
		return nil, err
	}
	i.transact = intx.RunOf(te, adapter)
	return i, nil
}

// Must returns v, or panics if err is not nil. It is for variables and for wiring that
// cannot continue without.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Tx returns the transaction of a call that NewTx protects. It panics where there is none
// of type T: in procedures that no NewTx for T protects, and in calls that pass through
// unprotected. For those stet.FromContext returns nil.
func Tx[T any](ctx context.Context) T {
	return intx.Of[T](ctx, adapter, "procedure protected by NewTx, and the call by a key?")
}

// onClient is the error of a call of a client, of which nothing is sent.
func (i *Interceptor) onClient() *connect.Error {
	return i.problem(connect.Peer{}, rpc.Misconfigured.End("stetconnect.New makes interceptors for handlers, and this one was given to a client; stetconnect.NewClient makes those for clients", 0))
}

func (i *Interceptor) log() *slog.Logger {
	return cmp.Or(i.o.ErrorLog, slog.Default())
}
