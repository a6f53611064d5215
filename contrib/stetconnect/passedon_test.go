package stetconnect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// TestADenialOfAnotherOperationIsNoReasonToRunAgain: the handler has charged, and then called
// a service that did not take its call.
func TestADenialOfAnotherOperationIsNoReasonToRunAgain(t *testing.T) {
	below := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge) // says SCOPE_MISSING
	denied := connect.NewError(connect.CodePermissionDenied, errors.New("denied"))
	for name, call := range map[string]func(context.Context) error{
		"stet's": func(ctx context.Context) error {
			req := ask("10", "k")
			req.Header().Del("X-Account")
			_, err := below.to().CallUnary(ctx, req)
			return err
		},
		"after an attempt that was lost": func(context.Context) error {
			return &stetclient.Error{Info: stetclient.Info{Execution: stet.MayHaveExecuted}, Cause: denied}
		},
	} {
		s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
			return nil, call(ctx)
		})
		for range 2 {
			_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
			if connect.CodeOf(err) != connect.CodePermissionDenied || stetconnect.ExecutionOf(err) != stet.Executed {
				t.Errorf("%s: %v, %v", name, err, stetconnect.ExecutionOf(err))
			}
		}
		s.want(t, 1)
	}
}

// TestPassedOnErrorOfAStoredRefusalIsConsistent: another service, which stet protects too, is
// still executing its operation. The handler returns that error, and it is stored.
func TestPassedOnErrorOfAStoredRefusalIsConsistent(t *testing.T) {
	below := connect.NewError(connect.CodeAborted, errors.New("in flight"))
	for _, d := range rpc.InFlight.End("", time.Second).Status.GetDetails() {
		detail, err := connect.NewErrorDetail(d)
		if err != nil {
			t.Fatal(err)
		}
		below.AddDetail(detail)
	}
	for name, c := range map[string]struct {
		tx, declares bool
		err          error
		want         stet.Execution
	}{
		"lease":                                {false, false, below, stet.Executed},
		"lease, declared not executed":         {false, true, stet.Permanent(below), stet.NotExecuted},
		"transaction":                          {true, false, stet.Permanent(below), stet.NotExecuted},
		"transaction with an effect elsewhere": {true, false, stet.Permanent(stet.Repeatable(below)), stet.Executed},
	} {
		fails := func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
			if c.declares {
				stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
			}
			return nil, c.err
		}
		for _, w := range ways() {
			t.Run(name+", "+w.name, func(t *testing.T) {
				var s *service
				if c.tx {
					s = serveTx(t, openSQLite(t), stetconnect.Options{}, fails)
				} else {
					s = serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, fails)
				}
				var first []string
				for i := range 10 { // the order of a map differs
					_, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
					e, ok := errors.AsType[*connect.Error](err)
					if !ok {
						t.Fatalf("got %v", err)
					}
					got := []string{e.Code().String(), e.Message(), e.Meta().Get(rpc.ExecutedName), e.Meta().Get(rpc.PushbackName)}
					st := new(status.Status)
					for _, d := range e.Details() {
						got = append(got, d.Type(), string(d.Bytes()))
						st.Details = append(st.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
					}
					if i == 0 {
						first = got
					}
					if !slices.Equal(first, got) {
						t.Errorf("first  %q\nreplay %q", first, got)
					}
					said, _ := rpc.ReadStatus(st)
					if said.Reason != rpc.PassedOn.Reason || said.Execution != c.want || said.Retryable || e.Meta().Get(rpc.ExecutedName) != c.want.String() {
						t.Errorf("got %+v, %v; want %s, %v, not retryable", said, e.Meta(), rpc.PassedOn.Reason, c.want)
					}
					var problem structpb.Struct
					if len(st.GetDetails()) != 4 || st.GetDetails()[1].UnmarshalTo(&problem) != nil {
						t.Fatalf("the details are %v", st.GetDetails())
					}
					if p := problem.AsMap(); p["execution"] != c.want.String() || p["retryable"] != false {
						t.Errorf("the problem is %v", p)
					}
				}
				s.want(t, 1)
			})
		}
	}
}

// TestAnErrorOfDoIsOfItsOwnOperation: the error of the call further down is inside of it.
func TestAnErrorOfDoIsOfItsOwnOperation(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
	s.Close()
	e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	for _, retries := range []bool{true, false} {
		client, _ := over(t, s, fast, 0)
		if !retries {
			client = s.to()
		}
		_, err := stet.Do(t.Context(), e, stet.Op{Scope: "s", Key: fmt.Sprint(retries)}, func(ctx context.Context) (string, error) {
			_, err := client.CallUnary(ctx, ask("10"))
			return "", err
		})
		if x := stetconnect.ExecutionOf(err); x != stet.MayHaveExecuted {
			t.Errorf("%v: %v", err, x)
		}
	}
}

// TestPassedOnFieldsDoNotDescribeThisCall: a handler that returns the response, or the
// fields, of a service further down as they came.
func TestPassedOnFieldsDoNotDescribeThisCall(t *testing.T) {
	for _, w := range ways() {
		for name, fails := range map[string]error{"success": nil, "stored": connect.NewError(connect.CodeAborted, nil), "released": stet.Retryable(connect.NewError(connect.CodeAborted, nil))} {
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
				info, _ := connect.CallInfoForHandlerContext(ctx)
				res := connect.NewResponse(receipt(1))
				for _, name := range []string{stetconnect.ReplayedHeader, rpc.ExecutedName} {
					info.ResponseHeader().Set(name, "true")
					info.ResponseTrailer().Set(name, "true")
					res.Header().Set(name, "true")
					res.Trailer().Set(name, "true")
				}
				return res, fails
			})
			res, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
			if fails == nil {
				if err != nil || res.Header().Get(stetconnect.ReplayedHeader)+res.Trailer().Get(stetconnect.ReplayedHeader)+res.Header().Get(rpc.ExecutedName) != "" {
					t.Errorf("%s, %s: %v, %v", w.name, name, res, err)
				}
				continue
			}
			want := map[string]string{"stored": "executed", "released": "not executed"}[name]
			e, ok := errors.AsType[*connect.Error](err)
			if !ok || len(e.Meta().Values(stetconnect.ReplayedHeader)) > 0 || strings.Join(e.Meta().Values(rpc.ExecutedName), ",") != want {
				t.Errorf("%s, %s: %v, %v", w.name, name, err, e.Meta())
			}
		}
	}
}

// TestAnErrorOfScopeExecutedNothing, even if it describes an operation of a service that
// Scope has asked.
func TestAnErrorOfScopeExecutedNothing(t *testing.T) {
	for _, w := range ways() {
		s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{
			Scope: func(context.Context, connect.AnyRequest) (string, error) {
				e := connect.NewError(connect.CodeUnavailable, errors.New("no accounts"))
				info, err := connect.NewErrorDetail(rpc.ResultExpired.End("", 0).Status.GetDetails()[0])
				if err != nil {
					t.Error(err)
				}
				e.AddDetail(info)
				e.Meta().Set("X-Why", "down")
				return "", e
			},
		}, charge)
		_, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
		e, ok := errors.AsType[*connect.Error](err)
		if !ok || e.Code() != connect.CodeUnavailable || e.Message() != "no accounts" || e.Meta().Get("X-Why") != "down" || stetconnect.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("%s: %v, %v", w.name, err, stetconnect.ExecutionOf(err))
		}
		s.want(t, 0)
	}
}

// TestAFingerprintThatIsZeroIsRefused: all requests would be alike.
func TestAFingerprintThatIsZeroIsRefused(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{Fingerprint: func(context.Context, connect.AnyRequest) (store.Fingerprint, error) {
		return store.Fingerprint{}, nil
	}}, charge)
	_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
	wantRefusal(t, err, connect.CodeInternal, "MISCONFIGURED")
	if s.want(t, 0); !strings.Contains(s.log.String(), "zero Fingerprint") {
		t.Error(&s.log)
	}
}

// TestAResponseWithoutAMessageIsAnEmptyOne, also for retries.
func TestAResponseWithoutAMessageIsAnEmptyOne(t *testing.T) {
	for _, w := range ways() {
		s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
			return connect.NewResponse[object](nil), nil
		})
		for range 2 {
			if res, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k")); err != nil || !proto.Equal(res.Msg, new(object)) {
				t.Errorf("%s: %v, %v", w.name, res, err)
			}
		}
		s.want(t, 1)
	}
}

// TestAServiceIsNotGRPCsOwnForItsName: only health, reflection and channelz are.
func TestAServiceIsNotGRPCsOwnForItsName(t *testing.T) {
	for procedure, c := range map[string]struct {
		protect []string
		code    connect.Code
	}{
		"/grpc.billing.v1.Ledger/Post":  {nil, connect.CodeInvalidArgument},
		"/grpc.health.v1.Health/Check":  {nil, 0},
		"/grpc.health.v1.Health/Check2": {[]string{"grpc.health.v1.Health"}, connect.CodeInvalidArgument},
	} {
		s := new(service)
		i := interceptor(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{Procedures: c.protect}, s)
		srv := listen(t, connect.NewUnaryHandler(procedure, charge, connect.WithInterceptors(i)))
		_, err := connect.NewClient[text, object](srv.Client(), srv.URL+procedure).CallUnary(t.Context(), ask("10"))
		if got := connect.CodeOf(err); err != nil && got != c.code || (err == nil) != (c.code == 0) {
			t.Errorf("%s: %v", procedure, err)
		}
	}
}
