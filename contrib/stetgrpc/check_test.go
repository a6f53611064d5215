package stetgrpc_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetgrpc"
)

func TestCheckRefusesUnprotectedMethods(t *testing.T) {
	e := newBench(t, stetgrpc.Options{}, stet.Options{}).engine
	for name, c := range map[string]struct {
		o    stetgrpc.Options
		says string // "" if it is fine
	}{
		"a stream":                    {says: "Watch is a streaming method"},
		"named":                       {o: stetgrpc.Options{Streams: []string{watch}}},
		"of a protected service":      {o: stetgrpc.Options{Methods: []string{"test.Payments"}}, says: "Watch is a streaming method"},
		"beside a protected method":   {o: stetgrpc.Options{Methods: []string{charge}}, says: "Watch is a streaming method"},
		"of an unprotected service":   {o: stetgrpc.Options{Unprotected: []string{"test.Payments"}}},
		"protected by name":           {o: stetgrpc.Options{Methods: []string{watch}, Streams: []string{watch}}, says: "is a streaming method; such are named"},
		"no such stream":              {o: stetgrpc.Options{Streams: []string{watch, "/test.Payments/Wach"}}, says: "no streaming method"},
		"a unary method as a stream":  {o: stetgrpc.Options{Streams: []string{watch, charge}}, says: "no streaming method"},
		"no such method":              {o: stetgrpc.Options{Methods: []string{"/test.Payments/Chrge"}, Streams: []string{watch}}, says: "there is no"},
		"no such service, of several": {o: stetgrpc.Options{Methods: []string{"test.Payments", "test.Other"}, Streams: []string{watch}}, says: `no "test.Other"`},
	} {
		c.o.Scope = stetgrpc.SingleTenant
		i := stetgrpc.Must(stetgrpc.New(e, c.o))
		s := grpc.NewServer(i.ServerOptions()...)
		s.RegisterService(&paymentsDesc, &payments{})
		healthpb.RegisterHealthServer(s, health.NewServer()) // has a streaming method
		err := i.Check(s)
		if c.says == "" && err != nil || c.says != "" && (stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
	}
}

// streamed makes a streaming call, and returns its error.
func streamed(b *bench, md ...string) error {
	stream, err := b.conn.NewStream(metadata.AppendToOutgoingContext(b.t.Context(), md...), &grpc.StreamDesc{ServerStreams: true}, watch)
	if err != nil {
		return err
	}
	m := new(wrapperspb.StringValue)
	if err := errors.Join(stream.SendMsg(m), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for err == nil {
		err = stream.RecvMsg(m)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func TestAStreamingCallIsRefusedUnlessNamedAndWithoutAKey(t *testing.T) {
	for name, c := range map[string]struct {
		o      stetgrpc.Options
		md     []string
		reason string
		code   codes.Code
	}{
		"not named":         {code: codes.FailedPrecondition, reason: "STREAM_UNPROTECTED"},
		"with a key":        {o: stetgrpc.Options{Streams: []string{watch}}, md: []string{key, "k"}, code: codes.InvalidArgument, reason: "STREAM_KEYED"},
		"with a bad key":    {o: stetgrpc.Options{Streams: []string{watch}}, md: []string{key, ""}, code: codes.InvalidArgument, reason: "STREAM_KEYED"},
		"with another name": {o: stetgrpc.Options{Streams: []string{watch}}, md: []string{"x-idempotency-key", "k"}, code: codes.InvalidArgument, reason: "STREAM_KEYED"},
		"named":             {o: stetgrpc.Options{Streams: []string{watch}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.o, stet.Options{})
			_, b.conn = start(t, b.i, b.payments, &paymentsDesc)
			err := streamed(b, c.md...)
			if status.Code(err) != c.code || c.reason != "" && !strings.Contains(answer{st: status.Convert(err)}.code(), c.reason) {
				t.Error(err)
			}
			if c.code != codes.OK {
				b.wantRuns(0)
				if stetgrpc.ExecutionOf(err) != stet.NotExecuted {
					t.Error(err)
				}
			}
		})
	}
}

func TestAServiceWithStreamsThatAreNotWatchedIsRefused(t *testing.T) {
	b := newBench(t, stetgrpc.Options{}, stet.Options{})
	alone := stetgrpc.Must(stetgrpc.New(b.engine, b.options(stetgrpc.Options{})))
	unary := alone.Unary()
	call := func(service string) error {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(key, "k", "content-type", "application/grpc"))
		_, err := unary(ctx, wrapperspb.String("1"), &grpc.UnaryServerInfo{FullMethod: "/registered." + service + "/Charge"}, b.handler)
		return err
	}
	if err := call("Streams"); status.Code(err) != codes.Internal || !strings.Contains(b.log.String(), "ServerOptions") {
		t.Errorf("%v\n%s", err, b.log)
	}
	b.wantRuns(0)
	if err := call("NoStreams"); err != nil {
		t.Error(err)
	}
	alone.Stream()
	if err := call("Streams"); stetgrpc.ExecutionOf(err) != stet.NotExecuted { // the key is NoStreams'
		t.Error(err)
	}
}

// TestAServiceIsNotGRPCsOwnForItsName: only health, reflection and channelz are, and they
// are protected, too, if they are named.
func TestAServiceIsNotGRPCsOwnForItsName(t *testing.T) {
	const health = "grpc.health.v1.Health"
	for service, c := range map[string]struct {
		methods []string
		want    codes.Code
	}{
		"grpc.billing.v1.Ledger": {nil, codes.InvalidArgument},
		"grpc.reflection.v1.R":   {nil, codes.OK},
		"grpc.health.v1.Other":   {[]string{health}, codes.OK},
		health:                   {[]string{health}, codes.InvalidArgument},
	} {
		b := newBench(t, stetgrpc.Options{Methods: c.methods}, stet.Options{})
		_, err := b.i.Unary()(t.Context(), wrapperspb.String("1"), &grpc.UnaryServerInfo{FullMethod: "/" + service + "/Check"}, b.handler)
		if status.Code(err) != c.want {
			t.Errorf("%s, %v: %v", service, c.methods, err)
		}
		d := desc(service)
		s := grpc.NewServer()
		s.RegisterService(&d, b.payments)
		if err := b.i.Check(s); (err != nil) != (c.want != codes.OK) && len(c.methods) == 0 {
			t.Errorf("%s, %v: %v", service, c.methods, err)
		}
	}
}
