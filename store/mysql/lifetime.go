package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// start begins a transaction with a context that does not end with ctx: database/sql would roll back
// while fn runs. A transaction that has not begun when ctx ends is rolled back if it begins later.
func start[Tx SQLTx](ctx context.Context, begin func(context.Context) (Tx, error)) (tx Tx, end context.CancelFunc, err error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var made Tx
	err = within(ctx, func() (err error) {
		made, err = begin(life)
		return err
	}, func(err error) {
		if err == nil {
			_ = made.Rollback()
		}
	})
	if err != nil {
		end()
		return tx, nil, err
	}
	return made, end, nil
}

// commit commits. If ctx ends before the answer comes, the transaction is left to itself.
func (t *transaction) commit(ctx context.Context) error {
	err := within(ctx, t.tx.Commit, func(error) { t.life() })
	t.left = errors.Is(err, errUnanswered)
	return err
}

// rollback rolls back if nothing was committed. If the connection is dead, the server may not know that, and
// keep the record locked: then it ends the server's side, too.
func (t *transaction) rollback() {
	if t.left || t.life == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := within(ctx, t.tx.Rollback, func(error) {})
	t.life()
	if err != nil && !errors.Is(err, sql.ErrTxDone) && t.row != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		t.kill(ctx, t.row.Record)
	}
}

var (
	errUnanswered = errors.New("mysql: no answer")
	errGoexit     = errors.New("mysql: the function has not returned")
)

// within calls fn, which may never return on a dead connection. If ctx ends before it has returned, the
// error is errUnanswered, and late is called with its error when it has.
func within(ctx context.Context, fn func() error, late func(error)) error {
	type result struct {
		err   error
		panic any
	}
	done, left := make(chan result), make(chan struct{})
	go func() {
		r := result{err: errGoexit}
		defer func() {
			if r.panic = recover(); r.panic != nil {
				r.err = errGoexit
			}
			select {
			case done <- r:
			case <-left:
				late(r.err)
			}
		}()
		r.err = fn()
	}()
	select {
	case r := <-done:
		if r.panic != nil {
			panic(r.panic)
		}
		return r.err
	case <-ctx.Done():
		close(left)
		return fmt.Errorf("%w: %w", errUnanswered, context.Cause(ctx))
	}
}
