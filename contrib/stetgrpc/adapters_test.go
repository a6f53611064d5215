package stetgrpc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/contrib/stetgrpc"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func init() {
	register("Payments", false)
	register("Streams", true)
	register("NoStreams", false)
}

// register makes the test's service known to the registry, as generated code does.
func register(service string, streams bool) {
	str := "." + string(new(wrapperspb.StringValue).ProtoReflect().Descriptor().FullName())
	method := func(name string, stream bool) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{Name: &name, InputType: &str, OutputType: &str, ServerStreaming: &stream}
	}
	s := &descriptorpb.ServiceDescriptorProto{Name: &service, Method: []*descriptorpb.MethodDescriptorProto{method("Charge", false)}}
	if streams {
		s.Method = append(s.Method, method("Watch", true))
	}
	f, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{Name: proto.String("test/" + service + ".proto"), Package: proto.String("registered"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/wrappers.proto"}, Service: []*descriptorpb.ServiceDescriptorProto{s}}, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(f)
	}
	if err != nil {
		panic(err)
	}
}

// known is newBench of a service that the registry knows, whose fingerprints are alike.
func known(t testing.TB, eo stet.Options) *bench {
	t.Helper()
	b := newBench(t, stetgrpc.Options{Fingerprint: alike}, eo)
	d := desc("registered.Payments")
	d.Streams, b.method = nil, "/registered.Payments/Charge"
	_, b.conn = start(t, b.i, b.payments, &d)
	return b
}

// order is the fingerprint that both adapters agree on.
func order(amount string) store.Fingerprint {
	return stet.NewFingerprint([]byte("charge"), []byte(amount))
}

func alike(_ context.Context, c *stetgrpc.Call) (store.Fingerprint, error) {
	return order(c.Request.(*wrapperspb.StringValue).GetValue()), nil
}

func op(amount string) stet.Op {
	return stet.Op{Scope: "single-tenant", Key: "k", Fingerprint: order(amount)}
}

func TestGRPCReturnsOutcomesOfDo(t *testing.T) {
	detailed, err := status.New(codes.FailedPrecondition, "declined").WithDetails(wrapperspb.String("d"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		fn   func(context.Context) (any, error)
		want string
	}{
		"value":       {func(context.Context) (any, error) { return "one", nil }, "one"},
		"other value": {func(context.Context) (any, error) { return map[string]int{"id": 1}, nil }, "FailedPrecondition RESULT_FOREIGN executed"},
		"error":       {func(context.Context) (any, error) { return nil, errors.New("secret") }, "Internal OPERATION_FAILED may have executed"},
		"status":      {func(context.Context) (any, error) { return nil, detailed.Err() }, "FailedPrecondition"},
	} {
		b := known(t, stet.Options{Policy: stet.Policy{Errors: stetgrpc.Errors()}})
		_, _ = stet.Do(t.Context(), b.engine, op("1"), c.fn)
		a := b.call("1", key, "k")
		b.want(a, c.want)
		if name == "status" && !proto.Equal(a.st.Proto(), detailed.Proto()) {
			t.Error(a.st.Proto())
		}
		if strings.Contains(a.st.Message(), "secret") {
			t.Errorf("the response has the text of an error of another adapter: %s", a.st.Message())
		}
		b.want(b.call("2", key, "k"), "FailedPrecondition MISMATCH not executed")
		b.wantRuns(0)
	}
}

func TestOtherAdaptersReturnOutcomesOfGRPC(t *testing.T) {
	b := known(t, stet.Options{})
	b.charge = func(context.Context, string) (proto.Message, error) {
		return nil, status.Error(codes.NotFound, "no such account")
	}
	b.want(b.call("1", key, "k"), "NotFound")
	_, err := stet.Do(t.Context(), b.engine, op("1"), func(context.Context) (string, error) {
		t.Error("it ran again")
		return "", nil
	})
	if stet.KindOf(err) != stet.KindFailed {
		t.Error(err)
	}
	b.wantRuns(1)
}

// TestAnOrderByHTTPAndByGRPCRunsOnce: the adapters meet where their scopes, keys and
// fingerprints agree.
func TestAnOrderByHTTPAndByGRPCRunsOnce(t *testing.T) {
	b := known(t, stet.Options{})
	out, err := stethttp.Outcome(201, http.Header{"Content-Type": {"application/json"}}, []byte(`"by HTTP"`))
	if err != nil {
		t.Fatal(err)
	}
	run, err := b.engine.Begin(t.Context(), op("1"))
	if err == nil {
		err = run.Settle(t.Context(), out)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.want(b.call("1", key, "k"), "by HTTP")
	b.wantRuns(0)
}

func TestAStatusIsTheSameInAReplayOfDo(t *testing.T) {
	detailed, err := status.New(codes.OutOfRange, "too much").WithDetails(wrapperspb.String("d"))
	if err != nil {
		t.Fatal(err)
	}
	sentinel, err := codec.NewErrors(codec.Sentinel("eof", io.EOF))
	if err != nil {
		t.Fatal(err)
	}
	for name, errs := range map[string]codec.Errors{"alone": stetgrpc.Errors(), "joined": codec.JoinErrors(stetgrpc.Errors(), sentinel)} {
		e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Errors: errs}})
		for n := range 3 {
			_, err := stet.Do(t.Context(), e, op("1"), func(context.Context) (string, error) {
				if n > 0 {
					t.Error("it ran again")
				}
				return "", errors.Join(detailed.Err(), io.EOF)
			})
			var own interface{ GRPCStatus() *status.Status }
			if !errors.As(err, &own) || !proto.Equal(own.GRPCStatus().Proto(), detailed.Proto()) || status.Code(err) != codes.OutOfRange ||
				errors.Is(err, io.EOF) != (name == "joined") || !strings.Contains(err.Error(), "EOF") {
				t.Errorf("%s, %d: %v", name, n, err)
			}
		}
	}
	if form, _ := stetgrpc.Errors().Encode(io.EOF); form != "" {
		t.Error(form)
	}
	for _, data := range []string{"\xff", "", "\x08\x00"} {
		form, _ := stetgrpc.Errors().Encode(detailed.Err())
		if err := stetgrpc.Errors().Decode("t", form, []byte(data)); err != nil {
			t.Errorf("%q: %v", data, err)
		}
	}
}
