// Package intx puts the transaction of a request into the context of its handler.
package intx

import (
	"context"
	"fmt"
	"reflect"

	"github.com/stet-go/stet"
)

// Adapter is the package name of an adapter. Each finds only its own transactions.
type Adapter string

// held is a transaction, and those of the calls around it.
type held struct {
	tx    any
	as    reflect.Type // the type parameter, which may be an interface
	outer *held
}

// With returns a context that has tx.
func With[T any](ctx context.Context, a Adapter, tx T) context.Context {
	outer, _ := ctx.Value(a).(*held)
	return context.WithValue(ctx, a, &held{tx, reflect.TypeFor[T](), outer})
}

// In reports whether ctx has a transaction of this adapter.
func (a Adapter) In(ctx context.Context) bool { return ctx.Value(a) != nil }

// Of returns the innermost transaction of type T. It panics if there is none; protected is
// what to check then.
func Of[T any](ctx context.Context, a Adapter, protected string) T {
	innermost, _ := ctx.Value(a).(*held)
	for h := innermost; h != nil; h = h.outer {
		if tx, ok := h.tx.(T); ok && h.as == reflect.TypeFor[T]() {
			return tx
		}
	}
	if innermost != nil {
		panic(fmt.Sprintf("%s: the transaction in this context is a %v, not a %v: call Tx[%v], or give stet.New and NewTx a store whose transactions are of type %v (for PostgreSQL, postgres.OverSQL makes one)",
			a, innermost.as, reflect.TypeFor[T](), innermost.as, reflect.TypeFor[T]()))
	}
	panic(fmt.Sprintf("%s: no transaction of type %v in this context: is the %s", a, reflect.TypeFor[T](), protected))
}

// Run is stet.TxEngine.Run without the type of its transaction, which is in the context of fn.
type Run func(ctx context.Context, op stet.Op, fn func(context.Context) (stet.Outcome, error)) (*stet.Lease, error)

// RunOf returns the Run of te for an adapter.
func RunOf[T any](te *stet.TxEngine[T], a Adapter) Run {
	return func(ctx context.Context, op stet.Op, fn func(context.Context) (stet.Outcome, error)) (*stet.Lease, error) {
		return te.Run(ctx, op, func(ctx context.Context, tx T) (stet.Outcome, error) { return fn(With(ctx, a, tx)) })
	}
}
