package stetconnect_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// overtaken is a store whose first transaction is without effect: another one wrote the record
// in the meantime, and gave it back.
type overtaken struct {
	*sqlite.Store
	done bool
}

func (o *overtaken) Unwrap() store.Store { return o.Store }

func (o *overtaken) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error),
) (store.Record, error) {
	if o.done {
		return o.Store.RunTx(ctx, req, keep, fn)
	}
	o.done = true
	_, err := o.Store.RunTx(ctx, req, keep, func(ctx context.Context, tx *sql.Tx, rec store.Record) (store.Settlement, error) {
		return store.Settlement{}, errors.Join(second(fn(ctx, tx, rec)), errors.New("rolled back"))
	})
	if err == nil {
		panic("it was committed")
	}
	return store.Record{ID: req.ID, Scope: req.Scope, State: store.Retryable, Fingerprint: req.Fingerprint, Fence: 1, Attempt: 1}, nil
}

func second[T any](_ T, err error) error { return err }

func TestDeclarationOfARepeatedHandlerIsForgotten(t *testing.T) {
	for _, fails := range []bool{false, true} {
		st := ledger(t)
		e := newEngine(t, st)
		s := new(service)
		i, err := stetconnect.NewTx(stettest.TxEngine[*sql.Tx](e, &overtaken{Store: st}), s.fill(stetconnect.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		s.start(t, i, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
			info, _ := connect.CallInfoForHandlerContext(ctx)
			info.ResponseHeader().Add("X-Try", "1")
			if fails && s.executed.Load() == 2 {
				return nil, connect.NewError(connect.CodeNotFound, nil)
			}
			return connect.NewResponse(receipt(s.executed.Load())), pay(ctx, req.Msg.GetValue())
		})
		res, err := s.to().CallUnary(t.Context(), ask("10", "k"))
		want := 1
		if fails {
			want = 0
			if e, ok := errors.AsType[*connect.Error](err); !ok || e.Code() != connect.CodeNotFound || len(e.Meta().Values("X-Try")) != 1 {
				t.Errorf("got %v", err)
			}
		} else if err != nil || !proto.Equal(res.Msg, receipt(2)) || len(res.Header().Values("X-Try")) != 1 {
			t.Errorf("got %v, %v", res, err)
		}
		s.want(t, 2)
		if n := payments(t, st); n != want {
			t.Errorf("%d payments; want %d", n, want)
		}
	}
}
