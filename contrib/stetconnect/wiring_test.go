package stetconnect_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// watching serves a streaming procedure behind an interceptor.
func watching(t *testing.T, i connect.Interceptor) (to func(...connect.ClientOption) *connect.Client[text, text], executed *int) {
	t.Helper()
	executed = new(int)
	mux := http.NewServeMux()
	mux.Handle(watchPath, connect.NewServerStreamHandler(watchPath, func(_ context.Context, _ *connect.Request[text], stream *connect.ServerStream[text]) error {
		*executed++
		return stream.Send(wrapperspb.String("charged"))
	}, connect.WithInterceptors(i)))
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return func(o ...connect.ClientOption) *connect.Client[text, text] {
		return connect.NewClient[text, text](srv.Client(), srv.URL+watchPath, o...)
	}, executed
}

// watch calls a streaming procedure, and returns how often it was sent something.
func watch(t *testing.T, client *connect.Client[text, text], keys ...string) (int, error) {
	t.Helper()
	stream, err := client.CallServerStream(t.Context(), ask("10", keys...))
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	n := 0
	for stream.Receive() {
		n++
	}
	return n, stream.Err()
}

func TestAStreamPassesByNameAndNeverWithAKey(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}))
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			var s service
			to, executed := watching(t, stetconnect.Must(stetconnect.New(e, s.fill(stetconnect.Options{}))))
			for _, keys := range [][]string{nil, {"k"}} {
				_, err := watch(t, to(w.options...), keys...)
				reason, code := "STREAM_UNPROTECTED", connect.CodeFailedPrecondition
				if keys != nil {
					reason, code = "STREAM_KEYED", connect.CodeInvalidArgument
				}
				wantRefusal(t, err, code, reason)
			}
			if !strings.Contains(s.log.String(), "Options.Streams") {
				t.Error("the log was not told")
			}
			optional, _ := watching(t, stetconnect.Must(stetconnect.New(e, s.fill(stetconnect.Options{Optional: true}))))
			_, err := watch(t, optional(w.options...))
			wantRefusal(t, err, connect.CodeFailedPrecondition, "STREAM_UNPROTECTED")

			named, passed := watching(t, stetconnect.Must(stetconnect.New(e, s.fill(stetconnect.Options{Streams: []string{watchPath}}))))
			if n, err := watch(t, named(w.options...)); n != 1 || err != nil {
				t.Errorf("got %d, %v", n, err)
			}
			_, err = watch(t, named(w.options...), "k")
			wantRefusal(t, err, connect.CodeInvalidArgument, "STREAM_KEYED")
			if *executed != 0 || *passed != 1 {
				t.Errorf("executed %d times, and by name %d times; want 0, 1", *executed, *passed)
			}
		})
	}
}

// schema is a service with a unary method that responds with a message that is linked into
// no program, and a streaming one.
func schema(t *testing.T) protoreflect.ServiceDescriptor {
	t.Helper()
	field := func(name string, number int32) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: new(name), JsonName: new(name), Number: new(number),
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("payments.proto"), Package: new("payments.v1"), Syntax: new("proto3"),
		Dependency: []string{"google/protobuf/wrappers.proto"},
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: new("Receipt"), Field: []*descriptorpb.FieldDescriptorProto{field("text", 1)}},
		},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: new("Payments"), Method: []*descriptorpb.MethodDescriptorProto{
			{Name: new("Charge"), InputType: new(".google.protobuf.StringValue"), OutputType: new(".payments.v1.Receipt")},
			{Name: new("Watch"), InputType: new(".google.protobuf.StringValue"), OutputType: new(".google.protobuf.StringValue"), ServerStreaming: new(true)},
		}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Services().ByName("Payments")
}

func TestServicesLetWrongNamesBeRefusedBeforeTheFirstCall(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}))
	services := schema(t)
	for what, o := range map[string]stetconnect.Options{
		watchPath + " is a streaming method":                          {},
		`there is no streaming method "/payments.v1.Payments/Charge"`: {Streams: []string{watchPath, chargePath}},
		`there is no "/payments.v1.Payments/List"`:                    {Streams: []string{watchPath}, Unprotected: []string{listPath}},
		`"/payments.v1.Payments/Watch" is a streaming method; such`:   {Streams: []string{watchPath}, Procedures: []string{watchPath}},
	} {
		o.Scope = stetconnect.SingleTenant
		if err := stetconnect.Must(stetconnect.New(e, o)).Check(services); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v; want %s", err, what)
		}
	}
	for _, o := range []stetconnect.Options{{Streams: []string{watchPath}}, {Unprotected: []string{"payments.v1.Payments"}}} {
		o.Scope = stetconnect.SingleTenant
		if err := stetconnect.Must(stetconnect.New(e, o)).Check(services); err != nil {
			t.Error(err)
		}
	}
}

func TestInterceptorOnTheWrongSideIsRefusedAtTheFirstCall(t *testing.T) {
	var s service
	i := stetconnect.Must(stetconnect.New(newEngine(t, memory.New(memory.Options{})), s.fill(stetconnect.Options{Streams: []string{watchPath}})))
	client := stetconnect.Must(stetconnect.NewClient(stetconnect.ClientOptions{}))
	protected := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
	_, err := protected.to(connect.WithInterceptors(i)).CallUnary(t.Context(), ask("10", "k"))
	wantRefusal(t, err, connect.CodeInternal, "MISCONFIGURED")
	if !strings.Contains(err.Error(), "NewClient") {
		t.Errorf("got %v", err)
	}
	protected.want(t, 0)

	to, executed := watching(t, i)
	if _, err := watch(t, to(connect.WithInterceptors(i))); err == nil || !strings.Contains(err.Error(), "NewClient") {
		t.Errorf("got %v", err)
	}
	info := connect.CallInfo(nil)
	ctx, info := connect.NewClientContext(t.Context())
	if _, err := connect.NewClient[text, text](nil, "http://127.0.0.1:1"+watchPath, connect.WithInterceptors(i)).CallServerStream(ctx, ask("10")); err == nil {
		t.Error("no error")
	}
	_ = info.ResponseHeader() // does not wait
	if *executed != 0 {
		t.Error("a stream was executed")
	}

	unprotected := new(service)
	unprotected.start(t, client, charge)
	if _, err := unprotected.to().CallUnary(t.Context(), ask("10", "k")); connect.CodeOf(err) != connect.CodeInternal || !strings.Contains(err.Error(), "stetconnect.New makes") {
		t.Errorf("got %v", err)
	}
	unprotected.want(t, 0)
	defer func() {
		if recover() == nil {
			t.Error("a handler of a stream took an interceptor for clients")
		}
	}()
	watching(t, client)
}

func TestInterceptorThatIsThereTwiceIsRefusedAndTheKeyIsFree(t *testing.T) {
	var s service
	i := stetconnect.Must(stetconnect.New(newEngine(t, memory.New(memory.Options{})), s.fill(stetconnect.Options{})))
	s.start(t, chain{i, i}, charge)
	for range 2 {
		_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
		wantRefusal(t, err, connect.CodeInternal, "MISCONFIGURED")
	}
	s.want(t, 0)
	if !strings.Contains(s.log.String(), "begun inside itself") {
		t.Error("the log was not told")
	}
}

func TestStethttpAroundTheInterceptorIsRefused(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			var s service
			e := newEngine(t, memory.New(memory.Options{}))
			i := stetconnect.Must(stetconnect.New(e, s.fill(stetconnect.Options{})))
			around := stethttp.Must(stethttp.New(e, stethttp.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }}))
			executed := 0
			mux := http.NewServeMux()
			mux.Handle(chargePath, connect.NewUnaryHandler(chargePath, func(ctx context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
				executed++
				return charge(ctx, req)
			}, connect.WithInterceptors(i)))
			srv := httptest.NewUnstartedServer(around.Handler(mux))
			srv.EnableHTTP2 = true
			srv.StartTLS()
			defer srv.Close()
			client := connect.NewClient[text, object](srv.Client(), srv.URL+chargePath, w.options...)
			_, err := client.CallUnary(t.Context(), ask("10", "k"))
			wantRefusal(t, err, connect.CodeInternal, "MISCONFIGURED")
			if executed != 0 || !strings.Contains(s.log.String(), "begun inside itself") {
				t.Errorf("executed %d times; the log: %s", executed, s.log.String())
			}
		})
	}
}

func TestNewProcessReplaysOutcomesOfAnEarlierOne(t *testing.T) {
	st := memory.New(memory.Options{})
	for i := range 2 {
		s := serve(t, newEngine(t, st), stetconnect.Options{}, charge)
		res, err := s.to().CallUnary(t.Context(), ask("10", "k"))
		if err != nil || !proto.Equal(res.Msg, receipt(1)) {
			t.Fatalf("process %d: got %v, %v", i, res, err)
		}
		s.want(t, int64(1-i))
	}
}

func TestAnInterceptorOutsideSeesTheMessageOfAReplay(t *testing.T) {
	var seen []proto.Message
	changed := false
	outside := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			if err != nil {
				return nil, err
			}
			m, ok := res.Any().(proto.Message)
			if !ok {
				return nil, errors.New("no message")
			}
			seen = append(seen, proto.Clone(m))
			if changed {
				proto.Reset(m)
			}
			res.Header().Set("X-Outside", "1")
			return res, nil
		}
	})
	var s service
	i := stetconnect.Must(stetconnect.New(newEngine(t, memory.New(memory.Options{})), s.fill(stetconnect.Options{})))
	s.start(t, chain{outside, i}, charge)
	for n := range 4 {
		changed = n == 2
		res, err := s.to().CallUnary(t.Context(), ask("10", "k"))
		if err != nil || res.Header().Get("X-Outside") != "1" || len(res.Header().Values("X-Outside")) != 1 {
			t.Fatalf("got %v, %v", res, err)
		}
		want := receipt(1)
		if changed {
			want = &object{} // the change counts
		}
		if !proto.Equal(seen[n], receipt(1)) || !proto.Equal(res.Msg, want) {
			t.Errorf("call %d: the interceptor saw %v, the client got %v", n, seen[n], res.Msg)
		}
	}
	s.want(t, 1)
}
