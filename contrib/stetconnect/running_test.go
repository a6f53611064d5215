package stetconnect_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store/memory"
)

// gate is a handler that waits until it is let go.
type gate struct{ entered, release chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 16), make(chan struct{})} }

func (g *gate) handle(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
	g.entered <- struct{}{}
	<-g.release
	return connect.NewResponse(receipt(1)), nil
}

func TestDuplicateOfARunningCallIsInFlight(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			g := newGate()
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, g.handle)
			s.i.SetRetryAfter(3 * time.Second)
			var first sync.WaitGroup
			first.Go(func() {
				if _, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k")); err != nil {
					t.Error(err)
				}
			})
			<-g.entered
			_, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
			if connect.CodeOf(err) != connect.CodeAborted {
				t.Fatalf("got %v; want aborted", err)
			}
			p := problemOf(t, err)
			if p.reason != "IN_FLIGHT" || p.execution != "may have executed" || p.after.AsDuration() != 3*time.Second || p.fields["retryable"] != true {
				t.Errorf("got %+v", p)
			}
			e, _ := errors.AsType[*connect.Error](err)
			if e.Meta().Get("Retry-After") != "3" {
				t.Errorf("metadata %v", e.Meta())
			}
			if pushback := e.Meta().Get("Grpc-Retry-Pushback-Ms"); (pushback == "3000") != (e.Meta().Get("Grpc-Status") != "") && pushback != "" {
				t.Errorf("metadata %v", e.Meta())
			}
			_, err = s.to(w.options...).CallUnary(t.Context(), ask("11", "k"))
			wantRefusal(t, err, connect.CodeFailedPrecondition, "MISMATCH") // also while it runs
			close(g.release)
			first.Wait()
			s.want(t, 1)
		})
	}
}

func TestDuplicateWaitsForTheOutcomeUntilItsLimit(t *testing.T) {
	g := newGate()
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{Wait: 25 * time.Second}, g.handle)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			res, err := s.to().CallUnary(t.Context(), ask("10", "k"))
			if err != nil || !proto.Equal(res.Msg, receipt(1)) {
				t.Errorf("got %v, %v", res, err)
			}
		})
	}
	<-g.entered
	brief, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := s.to().CallUnary(brief, ask("10", "k"))
	if connect.CodeOf(err) != connect.CodeAborted {
		t.Errorf("a duplicate with a short deadline got %v; want aborted, before its deadline", err)
	}
	close(g.release)
	all.Wait()
	s.want(t, 1)
}

func TestRunContinuesWhenItsCallerLeaves(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			var events stettest.Events
			g := newGate()
			e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Observer: &events})
			ended := make(chan error, 1)
			s := serve(t, e, stetconnect.Options{}, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
				defer func() { ended <- ctx.Err() }()
				return g.handle(ctx, req)
			})
			ctx, leave := context.WithCancel(t.Context())
			var caller sync.WaitGroup
			caller.Go(func() {
				if _, err := s.to(w.options...).CallUnary(ctx, ask("10", "k")); err == nil {
					t.Error("the caller that left got a response")
				}
			})
			<-g.entered
			leave()
			caller.Wait()
			close(g.release)
			if err := <-ended; err != nil {
				t.Errorf("the handler's context ended with the caller's: %v", err)
			}
			stettest.Eventually(t, "the outcome", func() bool { return events.Count(observe.Settled) == 1 })
			res, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
			if err != nil || res.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("got %v, %v", res, err)
			}
			s.want(t, 1)
		})
	}
}

func TestPanicContinuesAndRetriesGetIt(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
				panic("handler")
			})
			if _, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k")); err == nil || connect.IsWireError(err) {
				t.Errorf("the first caller got %v; want a broken connection", err)
			}
			for range 2 {
				_, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
				if p := problemOf(t, err); connect.CodeOf(err) != connect.CodeInternal || p.reason != "HANDLER_PANICKED" || p.execution != "may have executed" {
					t.Errorf("got %v, %+v", err, p)
				}
			}
			s.want(t, 1)
		})
	}
}

func TestResponseOfARecovererInsideIsTheOutcome(t *testing.T) {
	var seen int
	outside := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			seen++
			return next(ctx, req)
		}
	})
	inside := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
			defer func() {
				if recover() != nil {
					err = connect.NewError(connect.CodeDataLoss, errors.New("recovered"))
				}
			}()
			return next(ctx, req)
		}
	})
	s := &service{}
	i := interceptor(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, s)
	s.start(t, chain{outside, i, inside}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) { panic("handler") })
	for range 2 {
		_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
		if connect.CodeOf(err) != connect.CodeDataLoss {
			t.Errorf("got %v", err)
		}
	}
	s.want(t, 1)
	if seen != 2 {
		t.Errorf("an interceptor outside saw %d calls; want 2", seen)
	}
}

// chain are interceptors, the first around the second.
type chain []connect.Interceptor

func (c chain) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	for n := range c {
		next = c[len(c)-1-n].WrapUnary(next)
	}
	return next
}

func (c chain) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	for n := range c {
		next = c[len(c)-1-n].WrapStreamingHandler(next)
	}
	return next
}

func (c chain) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func TestCallThatWasNotExecutedIsNotStored(t *testing.T) {
	plain, coded := errors.New("queue full"), connect.NewError(connect.CodeResourceExhausted, errors.New("queue full"))
	for name, c := range map[string]struct {
		err     error
		declare bool
		code    connect.Code
		reason  string
	}{
		"a plain error that is retryable": {err: stet.Retryable(plain), code: connect.CodeUnavailable, reason: "NOT_EXECUTED"},
		"an error that is retryable":      {err: stet.Retryable(coded), code: connect.CodeResourceExhausted},
		"unauthenticated":                 {err: connect.NewError(connect.CodeUnauthenticated, nil), code: connect.CodeUnauthenticated},
		"declared":                        {err: coded, declare: true, code: connect.CodeResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			var s *service
			s = serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
				if s.executed.Load() > 1 {
					return connect.NewResponse(receipt(2)), nil
				}
				if c.declare {
					stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
				}
				return nil, c.err
			})
			_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
			if connect.CodeOf(err) != c.code || stetconnect.ExecutionOf(err) != stet.NotExecuted || problemOf(t, err).reason != c.reason {
				t.Errorf("got %v, %v, %+v", err, stetconnect.ExecutionOf(err), problemOf(t, err))
			}
			res, err := s.to().CallUnary(t.Context(), ask("10", "k"))
			if err != nil || !proto.Equal(res.Msg, receipt(2)) {
				t.Errorf("the retry got %v, %v", res, err)
			}
			s.want(t, 2)
		})
	}
	if len(coded.Meta()) > 0 {
		t.Errorf("the handler's own error was changed: %v", coded.Meta())
	}
}

func TestCallThatMayHaveExecutedIsUnknown(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
		stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the bank did not answer"))
	})
	for range 2 {
		_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
		if p := problemOf(t, err); p.reason != "OUTCOME_UNKNOWN" || stetconnect.ExecutionOf(err) != stet.MayHaveExecuted {
			t.Errorf("got %v, %+v", err, p)
		}
	}
	s.want(t, 1)
}

func TestACallFurtherDownThatTheEndOfTheRunBreaksOffLeavesItUnknown(t *testing.T) {
	e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{RunTimeout: 20 * time.Millisecond}})
	s := serve(t, e, stetconnect.Options{}, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
		<-ctx.Done()
		return nil, connect.NewError(connect.CodeDeadlineExceeded, errors.New("bank: deadline")) // wraps no cause
	})
	_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
	if p := problemOf(t, err); p.reason != "OUTCOME_UNKNOWN" {
		t.Errorf("got %v, %+v", err, p)
	}
}
