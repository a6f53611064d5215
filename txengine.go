package stet

import (
	"context"
	"reflect"

	"github.com/stet-go/stet/store"
)

// TxEngine runs operations in transactions of type Tx, which hold the business writes
// and the outcome. It is safe for concurrent use. WithTx makes one.
type TxEngine[Tx any] struct {
	e      *Engine
	s      store.TxStore[Tx]
	works  store.WorkTxStore[Tx]  // s, if it keeps work, or is in front of one that does
	groups store.GroupTxStore[Tx] // likewise
}

// WithTx returns e with the transactions of s. s must be the store that e was made
// over, or that store with transactions of another type, as postgres.OverSQL makes it;
// any other one is an *Error of kind KindInvalid: the record and the business writes
// would be in two databases.
func WithTx[Tx any](e *Engine, s store.TxStore[Tx]) (*TxEngine[Tx], error) {
	switch {
	case e == nil:
		return nil, invalid("WithTx needs an engine; stet.New makes one")
	case s == nil:
		return nil, invalid("WithTx needs the engine's store")
	case !same(e.store, s):
		return nil, invalid("WithTx needs the very store that stet.New was given, a %T, and got another one, a %T: "+
			"make the engine over the store whose transactions are to be used", e.store, s)
	}
	t := &TxEngine[Tx]{e: e, s: s}
	t.works, _ = store.As[store.WorkTxStore[Tx]](s)
	t.groups, _ = store.As[store.GroupTxStore[Tx]](s)
	return t, nil
}

// same reports whether both stores keep the same records, as far as can be told.
func same(a, b store.Store) bool {
	a, b = store.Base(a), store.Base(b)
	return !reflect.TypeOf(a).Comparable() || !reflect.TypeOf(b).Comparable() || a == b
}

// Engine returns the engine.
func (t *TxEngine[Tx]) Engine() *Engine { return t.e }

// Store returns the store whose transactions they are.
func (t *TxEngine[Tx]) Store() store.TxStore[Tx] { return t.s }

// InTx runs fn in a transaction and commits it, for Accept and for steps of one's own.
// If fn returns an error or panics, it rolls back and returns that error, or the panic
// goes on. Any other error wraps store.ErrNotDone, or says that the fate of the commit
// is not known.
func (t *TxEngine[Tx]) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	ws, err := t.workStore()
	if err != nil {
		return err
	}
	return ws.InTx(ctx, fn)
}

func (t *TxEngine[Tx]) workStore() (store.WorkTxStore[Tx], error) {
	if t.works != nil {
		return t.works, nil
	}
	return nil, invalid("the store %T keeps no work in transactions of type %v", t.s, reflect.TypeFor[Tx]())
}
