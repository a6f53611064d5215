package stetconnect_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// ledger opens a store with a table of payments.
func ledger(t *testing.T) *sqlite.Store {
	t.Helper()
	s := openSQLite(t)
	if _, err := s.DB().ExecContext(t.Context(), "CREATE TABLE payments (amount TEXT)"); err != nil {
		t.Fatal(err)
	}
	return s
}

func payments(t *testing.T, s *sqlite.Store) (n int) {
	t.Helper()
	if err := s.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM payments").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// pay writes a payment in the transaction of the call.
func pay(ctx context.Context, amount string) error {
	_, err := stetconnect.Tx[*sql.Tx](ctx).ExecContext(ctx, "INSERT INTO payments VALUES (?)", amount)
	return err
}

func TestWritesOfTheHandlerAreCommittedWithItsResponse(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			st := ledger(t)
			s := serveTx(t, st, stetconnect.Options{}, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
				return connect.NewResponse(receipt(1)), pay(ctx, req.Msg.GetValue())
			})
			for i := range 3 {
				res, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
				if err != nil {
					t.Fatal(err)
				}
				if replayed := res.Header().Get("Idempotent-Replayed") == "true"; replayed != (i > 0) || !proto.Equal(res.Msg, receipt(1)) {
					t.Errorf("got %v, replayed %v", res.Msg, replayed)
				}
			}
			if n := payments(t, st); n != 1 {
				t.Errorf("%d payments; want 1", n)
			}
			s.want(t, 1)
		})
	}
}

func TestAnErrorAndAPanicRollBackAndARetryRunsAgain(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			st := ledger(t)
			var s *service
			s = serveTx(t, st, stetconnect.Options{}, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
				if err := pay(ctx, req.Msg.GetValue()); err != nil {
					return nil, err
				}
				info, _ := connect.CallInfoForHandlerContext(ctx)
				info.ResponseHeader().Set("X-Try", "1")
				switch s.executed.Load() {
				case 1:
					return nil, connect.NewError(connect.CodeAborted, errors.New("too many at a time"))
				case 2:
					panic("handler")
				case 3:
					return nil, errors.New("plain")
				}
				return connect.NewResponse(receipt(s.executed.Load())), nil
			})
			for i, code := range []connect.Code{connect.CodeAborted, 0, connect.CodeUnavailable} {
				_, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
				if err == nil || code != 0 && connect.CodeOf(err) != code {
					t.Fatalf("call %d: got %v; want %v", i, err, code)
				}
				if x := stetconnect.ExecutionOf(err); code != 0 && x != stet.NotExecuted {
					t.Errorf("call %d: %v", i, x)
				}
				if n := payments(t, st); n != 0 {
					t.Errorf("call %d: %d payments; want 0", i, n)
				}
			}
			for range 2 {
				res, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
				if err != nil || !proto.Equal(res.Msg, receipt(4)) || len(res.Header().Values("X-Try")) != 1 {
					t.Errorf("got %v, %v", res, err)
				}
			}
			if n := payments(t, st); n != 1 {
				t.Errorf("%d payments; want 1", n)
			}
			s.want(t, 4)
		})
	}
}

func TestRefusalIsStoredAfterTheRollback(t *testing.T) {
	declined := errors.New("declined")
	for _, err := range []error{
		connect.NewError(connect.CodeFailedPrecondition, declined),
		connect.NewError(connect.CodeNotFound, declined),
		stet.Permanent(connect.NewError(connect.CodeInternal, declined)),
	} {
		t.Run(connect.CodeOf(err).String(), func(t *testing.T) { refusedTx(t, err) })
	}
}

func refusedTx(t *testing.T, refusal error) {
	st := ledger(t)
	s := serveTx(t, st, stetconnect.Options{}, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
		if err := pay(ctx, req.Msg.GetValue()); err != nil {
			return nil, err
		}
		return nil, refusal
	})
	for i := range 2 {
		_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
		e, ok := errors.AsType[*connect.Error](err)
		if !ok || e.Code() != connect.CodeOf(refusal) || e.Message() != "declined" || stetconnect.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("got %v, %v", err, stetconnect.ExecutionOf(err))
		}
		if replayed := e.Meta().Get("Idempotent-Replayed") == "true"; replayed != (i > 0) {
			t.Errorf("call %d: replayed is %v", i, replayed)
		}
	}
	s.want(t, 1)
	if n := payments(t, st); n != 0 {
		t.Errorf("%d payments; want 0", n)
	}
}

func TestTxPanicsWhereThereIsNoTransaction(t *testing.T) {
	for name, ctx := range map[string]context.Context{"none": t.Context()} {
		func() {
			defer func() {
				if said, ok := recover().(string); !ok || !strings.Contains(said, "NewTx") {
					t.Errorf("%s: %v", name, said)
				}
			}()
			stetconnect.Tx[*sql.Tx](ctx)
		}()
	}
	st := ledger(t)
	said := make(chan any, 1)
	s := serveTx(t, st, stetconnect.Options{Optional: true}, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
		defer func() { said <- recover(); panic("on") }()
		stetconnect.Tx[*sql.Conn](ctx)
		return nil, nil
	})
	if _, err := s.to().CallUnary(t.Context(), ask("10", "k")); err == nil {
		t.Error("no error")
	}
	if text, ok := (<-said).(string); !ok || !strings.Contains(text, "*sql.Tx, not a *sql.Conn") {
		t.Errorf("it said %v", text)
	}
}

func TestWrongOptionsAreRefusedBeforeTheFirstCall(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}))
	ok := stetconnect.SingleTenant
	for what, o := range map[string]stetconnect.Options{
		"Scope":                {},
		"Wait":                 {Scope: ok, Wait: -1},
		"Procedures":           {Scope: ok, Procedures: []string{"Charge/"}},
		"Unprotected":          {Scope: ok, Unprotected: []string{"/Charge"}},
		"Streams":              {Scope: ok, Streams: []string{"payments.v1.Payments"}},
		"is in Procedures and": {Scope: ok, Procedures: []string{chargePath}, Unprotected: []string{chargePath}},
	} {
		if _, err := stetconnect.New(e, o); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if _, err := stetconnect.New(nil, stetconnect.Options{Scope: ok}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("without an engine: %v", err)
	}
	if _, err := stetconnect.NewTx[*sql.Tx](nil, stetconnect.Options{Scope: ok}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("without transactions: %v", err)
	}
	st := openSQLite(t)
	if _, err := stetconnect.NewTx(stettest.TxEngine[*sql.Tx](newEngine(t, st), st), stetconnect.Options{}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("without a scope: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Must did not panic")
		}
	}()
	stetconnect.Must(stetconnect.New(e, stetconnect.Options{}))
}

func TestTransactionThatTheHandlerFailedIsAborted(t *testing.T) {
	st, runs := ledger(t), 0
	s := serveTx(t, st, stetconnect.Options{}, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
		if runs++; runs == 1 {
			_, _ = stetconnect.Tx[*sql.Tx](ctx).ExecContext(ctx, "INSERT INTO nowhere VALUES (1)") // and continues
		}
		return connect.NewResponse(receipt(1)), pay(ctx, req.Msg.GetValue())
	})
	if _, err := s.to().CallUnary(t.Context(), ask("10", "k")); connect.CodeOf(err) != connect.CodeInternal || stetconnect.ExecutionOf(err) != stet.NotExecuted {
		t.Errorf("got %v", err)
	}
	if _, err := s.to().CallUnary(t.Context(), ask("10", "k")); err != nil || payments(t, st) != 1 {
		t.Errorf("the retry: %v, %d payments", err, payments(t, st))
	}
}
