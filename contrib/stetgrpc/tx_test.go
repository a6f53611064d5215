package stetgrpc_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/sqlite"
)

// ledger is a bench in transactions of SQLite, whose handler pays before all else.
type ledger struct {
	*bench
	te *stet.TxEngine[*sql.Tx]
}

func newLedger(t *testing.T, o stetgrpc.Options) *ledger {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b := &bench{payments: &payments{}, method: charge, t: t, events: &stettest.Events{}, log: &stettest.Log{}}
	b.engine = stettest.Engine(t, s, stet.Options{Observer: b.events, Policy: stet.Policy{RunTimeout: 10 * time.Second}})
	l := &ledger{b, stettest.TxEngine(b.engine, s)}
	l.in(func(tx *sql.Tx) error { _, err := tx.Exec("CREATE TABLE payments (amount TEXT)"); return err })
	b.i = stetgrpc.Must(stetgrpc.NewTx(l.te, b.options(o)))
	b.server, b.conn = start(t, b.i, b.payments, unaryDesc())
	return l
}

func (l *ledger) in(fn func(*sql.Tx) error) {
	l.t.Helper()
	if err := l.te.InTx(l.t.Context(), func(_ context.Context, tx *sql.Tx) error { return fn(tx) }); err != nil {
		l.t.Fatal(err)
	}
}

// pays has the handler pay, and then do as fn does.
func (l *ledger) pays(fn func(context.Context, string) (proto.Message, error)) {
	l.charge = func(ctx context.Context, amount string) (proto.Message, error) {
		if _, err := stetgrpc.Tx[*sql.Tx](ctx).ExecContext(ctx, "INSERT INTO payments VALUES (?)", amount); err != nil {
			return nil, err
		}
		return fn(ctx, amount)
	}
}

func (l *ledger) wantPaid(want int) {
	l.t.Helper()
	var n int
	l.in(func(tx *sql.Tx) error { return tx.QueryRow("SELECT count(*) FROM payments").Scan(&n) })
	if n != want {
		l.t.Errorf("%d payments; want %d", n, want)
	}
}

func TestTheEffectAndTheOutcomeAreOneCommit(t *testing.T) {
	l := newLedger(t, stetgrpc.Options{})
	l.pays(func(ctx context.Context, amount string) (proto.Message, error) {
		return wrapperspb.String("paid " + amount), grpc.SetHeader(ctx, metadata.Pairs("a", "1"))
	})
	first := l.call("1", key, "k")
	l.want(first, "paid 1")
	l.same(first, l.call("1", key, "k"))
	l.want(l.call("2", key, "k"), "FailedPrecondition MISMATCH not executed")
	l.wantPaid(1)
}

func TestAStatusThatIsNotOKRollsBack(t *testing.T) {
	boom := status.Error(codes.Aborted, "boom")
	for name, c := range map[string]struct {
		fn    func(context.Context) error
		first string
	}{
		"status":     {func(context.Context) error { return boom }, "Aborted"},
		"error":      {func(context.Context) error { return errors.New("boom") }, "Unavailable NOT_EXECUTED not executed"},
		"retryable":  {func(context.Context) error { return stet.Retryable(status.Error(codes.NotFound, "")) }, "NotFound"},
		"denied":     {func(context.Context) error { return status.Error(codes.PermissionDenied, "") }, "PermissionDenied"},
		"declared":   {func(ctx context.Context) error { stet.FromContext(ctx).Declare(stet.NotExecuted, 0); return nil }, "paid 1"},
		"unknown":    {func(ctx context.Context) error { stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0); return nil }, "Unknown OUTCOME_UNKNOWN may have executed"},
		"no message": {func(ctx context.Context) error { return errNoMessage }, "Internal"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, stetgrpc.Options{})
			l.pays(func(ctx context.Context, amount string) (proto.Message, error) {
				if l.runs.Load() > 1 {
					return wrapperspb.String("paid " + amount), nil
				}
				err := c.fn(ctx)
				if err == errNoMessage {
					return nil, nil
				}
				return wrapperspb.String("paid " + amount), err
			})
			a := l.call("1", key, "k")
			l.want(a, c.first)
			l.wantPaid(0)
			if got := a.trailer.Get(stetgrpc.ExecutionMetadata); (name == "status" || name == "denied") && (len(got) != 1 || got[0] != "not executed") {
				t.Errorf("the trailer says %v", got)
			}
			l.want(l.call("1", key, "k"), "paid 1")
			l.wantPaid(1)
			l.wantRuns(2)
		})
	}
}

var errNoMessage = errors.New("no message")

func TestRefusalIsStoredInASecondTransaction(t *testing.T) {
	for code, mark := range map[codes.Code]func(error) error{
		codes.FailedPrecondition: func(err error) error { return err },
		codes.NotFound:           func(err error) error { return err },
		codes.Internal:           stet.Permanent,
	} {
		t.Run(code.String(), func(t *testing.T) {
			l := newLedger(t, stetgrpc.Options{})
			st, err := status.New(code, "declined").WithDetails(wrapperspb.String("d"))
			if err != nil {
				t.Fatal(err)
			}
			l.pays(func(ctx context.Context, _ string) (proto.Message, error) {
				_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
				return nil, mark(st.Err())
			})
			first := l.call("1", key, "k")
			if !proto.Equal(first.st.Proto(), st.Proto()) || first.trailer.Get("t") == nil {
				t.Error(first.st.Proto(), first.trailer)
			}
			l.same(first, l.call("1", key, "k"))
			l.wantPaid(0)
			l.wantRuns(1)
		})
	}
}

func TestAPanicRollsBack(t *testing.T) {
	l := newLedger(t, stetgrpc.Options{})
	i := l.i.Unary()
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(key, "k"))
	l.pays(func(context.Context, string) (proto.Message, error) { panic("out of cash") })
	func() {
		defer func() {
			if v := recover(); v != "out of cash" {
				t.Error(v)
			}
		}()
		_, _ = i(ctx, wrapperspb.String("1"), &grpc.UnaryServerInfo{FullMethod: charge}, func(ctx context.Context, _ any) (any, error) { return l.do(ctx, "1") })
	}()
	l.wantPaid(0)
	l.pays(func(context.Context, string) (proto.Message, error) { return wrapperspb.String("paid"), nil })
	l.want(l.call("1", key, "k"), "paid")
	l.wantPaid(1)
}

func TestManyCallersPayOnce(t *testing.T) {
	l := newLedger(t, stetgrpc.Options{Wait: time.Minute})
	l.pays(func(context.Context, string) (proto.Message, error) { return wrapperspb.String("paid"), nil })
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { l.want(l.call("1", key, "k"), "paid") })
	}
	all.Wait()
	l.wantPaid(1)
}

func TestTxWithoutTransactionPanics(t *testing.T) {
	l := newLedger(t, stetgrpc.Options{Optional: true})
	panics := make(chan any, 1)
	l.charge = func(ctx context.Context, _ string) (_ proto.Message, err error) {
		defer func() { panics <- recover(); err = status.Error(codes.Internal, "") }()
		stetgrpc.Tx[int](ctx)
		return nil, nil
	}
	for _, md := range [][]string{nil, {key, "k"}} {
		l.call("1", md...)
		if v := <-panics; v == nil {
			t.Errorf("%v: no panic", md)
		}
	}
}

func TestTransactionThatTheHandlerFailedIsAborted(t *testing.T) {
	l := newLedger(t, stetgrpc.Options{})
	runs := 0
	l.pays(func(ctx context.Context, _ string) (proto.Message, error) {
		if runs++; runs == 1 {
			_, _ = stetgrpc.Tx[*sql.Tx](ctx).ExecContext(ctx, "INSERT INTO nowhere VALUES (1)") // and continues
		}
		return wrapperspb.String("paid"), nil
	})
	l.want(l.call("1", key, "k"), "Internal TRANSACTION_ABORTED not executed")
	l.wantPaid(0)
	l.want(l.call("1", key, "k"), "paid")
	l.wantPaid(1)
}
