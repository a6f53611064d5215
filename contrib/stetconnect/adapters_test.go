package stetconnect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// settle stores an outcome under the key "k", as another adapter does.
func settle(t *testing.T, e *stet.Engine, out stet.Outcome) {
	t.Helper()
	run, err := e.Begin(t.Context(), stet.Op{Scope: "acct_1", Key: "k", Fingerprint: alike})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Settle(t.Context(), out); err != nil {
		t.Fatal(err)
	}
}

// alike is the fingerprint of every request here.
var alike = stet.NewFingerprint([]byte("order 7"))

func likeOthers(context.Context, connect.AnyRequest) (store.Fingerprint, error) { return alike, nil }

func TestOutcomeOfAnotherAdapterIsReturnedAndNothingRunsAgain(t *testing.T) {
	page, err := stethttp.Outcome(200, http.Header{"Content-Type": {"text/html"}}, []byte("<p>"))
	if err != nil {
		t.Fatal(err)
	}
	refused, err := stethttp.Outcome(409, http.Header{"Content-Type": {"application/problem+json"}}, []byte(`{"title":"Sold out"}`))
	if err != nil {
		t.Fatal(err)
	}
	json := stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: "application/json", Body: []byte(`{"charge":7}`)}
	for what, c := range map[string]struct {
		out      stet.Outcome
		code     connect.Code
		reason   string
		executed stet.Execution
	}{
		"JSON":             {out: json},
		"HTML":             {page, connect.CodeFailedPrecondition, "RESULT_FOREIGN", stet.Executed},
		"HTTP 409":         {refused, connect.CodeAborted, "HTTP_RESPONSE", stet.Executed},
		"a failure of Do":  {stet.Outcome{Failed: true, Adapter: store.AdapterGo, Status: 500, Type: "text/plain", Body: []byte("no")}, connect.CodeInternal, "OPERATION_FAILED", stet.MayHaveExecuted},
		"timed out":        {stet.Outcome{Failed: true, Reason: store.ReasonTimedOut}, connect.CodeDeadlineExceeded, "PROCESSING_TIMED_OUT", stet.MayHaveExecuted},
		"without a result": {stet.Outcome{Gone: true}, connect.CodeFailedPrecondition, "RESULT_EXPIRED", stet.Executed},
	} {
		for _, w := range ways() {
			t.Run(what+"/"+w.name, func(t *testing.T) {
				e := newEngine(t, memory.New(memory.Options{}))
				s := serve(t, e, stetconnect.Options{Fingerprint: likeOthers}, charge)
				if _, err := s.to().CallUnary(t.Context(), ask("10", "other")); err != nil { // so that the type of its responses is known
					t.Fatal(err)
				}
				settle(t, e, c.out)
				res, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
				if c.code == 0 {
					if want := (&object{Fields: map[string]*structpb.Value{"charge": structpb.NewNumberValue(7)}}); err != nil || !proto.Equal(res.Msg, want) {
						t.Errorf("got %v, %v; want %v", res, err, want)
					}
				} else if p := problemOf(t, err); connect.CodeOf(err) != c.code || p.reason != c.reason || stetconnect.ExecutionOf(err) != c.executed {
					t.Errorf("got %v, %+v", err, p)
				}
				s.want(t, 1)
			})
		}
	}
}

func TestAnRPCsOutcomeIsAValueOfDo(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}))
	s := serve(t, e, stetconnect.Options{Fingerprint: likeOthers}, charge)
	if _, err := s.to().CallUnary(t.Context(), ask("10", "k")); err != nil {
		t.Fatal(err)
	}
	_, err := stet.Do(t.Context(), e, stet.Op{Scope: "acct_1", Key: "k", Fingerprint: alike}, func(context.Context) (string, error) {
		t.Error("it ran again")
		return "", nil
	})
	if stet.KindOf(err) != stet.KindForeign || stet.ExecutionOf(err) != stet.Executed {
		t.Errorf("got %v", err)
	}
}

func TestAMessageThatOnlyTheSchemaHasIsReplayedByAProcessThatHasJustStarted(t *testing.T) {
	service := schema(t)
	method := service.Methods().ByName("Charge")
	st := memory.New(memory.Options{})
	for i := range 2 {
		e := newEngine(t, st)
		idem := stetconnect.Must(stetconnect.New(e, stetconnect.Options{Scope: stetconnect.SingleTenant}))
		ran := 0
		h := connect.NewUnaryHandler(chargePath, func(context.Context, *connect.Request[text]) (*connect.Response[dynamicpb.Message], error) {
			ran++
			m := dynamicpb.NewMessage(method.Output())
			m.Set(method.Output().Fields().ByName("text"), protoreflect.ValueOfString("charged"))
			return connect.NewResponse(m), nil
		}, connect.WithSchema(method), connect.WithInterceptors(idem))
		s := listen(t, h)
		for _, w := range ways() {
			client := connect.NewClient[dynamicpb.Message, dynamicpb.Message](s.Client(), s.URL+chargePath, append(w.options, connect.WithSchema(method),
				connect.WithResponseInitializer(func(_ connect.Spec, m any) error {
					*m.(*dynamicpb.Message) = *dynamicpb.NewMessage(method.Output()) //nolint:forcetypeassert,govet // a test
					return nil
				}))...)
			in := dynamicpb.NewMessage(method.Input())
			in.Set(method.Input().Fields().ByName("value"), protoreflect.ValueOfString("10"))
			req := connect.NewRequest(in)
			req.Header().Set("Idempotency-Key", "k")
			res, err := client.CallUnary(t.Context(), req)
			if err != nil || res.Msg.Get(method.Output().Fields().ByName("text")).String() != "charged" {
				t.Fatalf("process %d, %s: got %v, %v", i, w.name, res, err)
			}
		}
		if ran != 1-i {
			t.Errorf("process %d ran it %d times", i, ran)
		}
	}
}

// A message with maps is marshalled in any order by package connect.
func TestTheReplayOfMapsIsTheSameToTheLastByte(t *testing.T) {
	many := &object{Fields: map[string]*structpb.Value{}}
	for n := range 40 {
		many.Fields[fmt.Sprint("field ", n)] = structpb.NewNumberValue(float64(n))
	}
	for _, contentType := range []string{"application/proto", "application/json"} {
		st := memory.New(memory.Options{})
		var first []byte
		for i := range 6 {
			s := serve(t, newEngine(t, st), stetconnect.Options{}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
				return connect.NewResponse(many), nil
			})
			_, _, content := post(t, s, contentType, map[string]string{"application/json": `"10"`, "application/proto": "\x0a\x0210"}[contentType], "k")
			if i == 0 {
				first = content
			}
			if len(first) < 40 || !bytes.Equal(first, content) {
				t.Errorf("%s: replay %d differs", contentType, i)
			}
		}
	}
}

func TestAResponseThatIsTooLargeToKeepReachesTheFirstCaller(t *testing.T) {
	e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{MaxResult: 256}})
	large := connect.NewResponse(&object{Fields: map[string]*structpb.Value{"x": structpb.NewStringValue(string(bytes.Repeat([]byte("x"), 1000)))}})
	s := serve(t, e, stetconnect.Options{}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) { return large, nil })
	if res, err := s.to().CallUnary(t.Context(), ask("10", "k")); err != nil || !proto.Equal(res.Msg, large.Msg) {
		t.Errorf("got %v, %v", res, err)
	}
	_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
	if p := problemOf(t, err); p.reason != "RESULT_EXPIRED" || stetconnect.ExecutionOf(err) != stet.Executed {
		t.Errorf("got %v, %+v", err, p)
	}
	s.want(t, 1)
}

// An error that a handler passes on from a service further down has fields that are
// that service's.
func TestFieldsOfAnErrorThatIsPassedOnAreNotSent(t *testing.T) {
	for _, w := range ways() {
		s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
			e := connect.NewWireError(connect.CodeAborted, errors.New("below"))
			e.Meta().Set("X-Secret", "1")
			return nil, fmt.Errorf("passed on: %w", e)
		})
		for range 2 {
			_, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
			e, ok := errors.AsType[*connect.Error](err)
			if !ok || e.Code() != connect.CodeAborted || e.Message() != "below" || e.Meta().Get("X-Secret") != "" || stetconnect.ExecutionOf(err) != stet.Executed {
				t.Errorf("%s: got %v, metadata %v", w.name, err, slices.Collect(maps.Keys(e.Meta())))
			}
		}
		s.want(t, 1)
	}
}

// A service calls another one, and returns its error unchanged. What stet says there is of
// the operation of the other service.
func TestErrorOfAnotherOperationDoesNotDescribeThisOne(t *testing.T) {
	below := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, nil)
	charge := func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
		_, err := below.to().CallUnary(ctx, ask("10")) // without a key
		return nil, err
	}
	for _, w := range ways() {
		s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
		for range 2 { // the first answer, and the replay
			_, err := s.to(w.options...).CallUnary(t.Context(), ask("10", "k"))
			e, ok := errors.AsType[*connect.Error](err)
			if !ok || e.Code() != connect.CodeInvalidArgument || stetconnect.ExecutionOf(err) != stet.Executed {
				t.Fatalf("%s: got %v, %v", w.name, err, stetconnect.ExecutionOf(err))
			}
			var said []string
			for _, d := range e.Details() {
				switch m, _ := d.Value(); m := m.(type) {
				case *errdetails.ErrorInfo:
					said = append(said, m.GetReason()+" "+m.GetMetadata()["execution"])
				case *structpb.Struct:
					said = append(said, m.GetFields()["type"].GetStringValue()+" "+m.GetFields()["execution"].GetStringValue())
				}
			}
			base := stethttp.DefaultProblemBase
			if want := []string{"PASSED_ON executed", base + "passed-on executed", "KEY_MISSING not executed", base + "key-missing not executed"}; !slices.Equal(said, want) {
				t.Errorf("%s: got %q", w.name, said)
			}
		}
		s.want(t, 1)
	}
}
