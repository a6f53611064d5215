package stethttp

import (
	"context"
	"errors"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/intx"
	"github.com/stet-go/stet/store"
)

// acceptFunc calls prepare in a transaction and accepts the operation there, with
// stet.TxEngine.Accept or AsyncOptions.AcceptTx.
type acceptFunc func(ctx context.Context, op stet.Op, prepare func(context.Context) (stet.Work, bool),
	accept func(context.Context, stet.Op, stet.Work) (stet.Status, error)) (stet.Status, error)

// acceptIn is an acceptFunc with its transaction type tucked away.
func acceptIn[T any](te *stet.TxEngine[T]) acceptFunc {
	return func(ctx context.Context, op stet.Op, prepare func(context.Context) (stet.Work, bool),
		accept func(context.Context, stet.Op, stet.Work) (stet.Status, error)) (st stet.Status, err error) {
		err = te.InTx(ctx, func(ctx context.Context, tx T) error {
			ctx = intx.With(ctx, adapter, tx)
			work, ok := prepare(ctx)
			switch {
			case !ok:
				return errRefused
			case accept == nil:
				st, err = te.Accept(ctx, tx, op, work)
			default:
				st, err = accept(ctx, op, work)
				if _, own := errors.AsType[*stet.Error](err); err != nil && !own {
					err = &stet.Error{Kind: stet.KindStore, Execution: stet.NotExecuted, Cause: fmt.Errorf("AsyncOptions.AcceptTx: %w", err)}
				}
			}
			if err == nil && !st.New {
				return errStands // what prepare has written is undone
			}
			return err
		})
		switch {
		case errors.Is(err, errStands):
			return st, nil
		case errors.Is(err, store.ErrNotDone):
			err = &stet.Error{Kind: stet.KindStore, Execution: stet.NotExecuted, Cause: err}
		case err == nil:
			te.Engine().Wake()
		}
		return st, err
	}
}
