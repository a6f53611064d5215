package protobuf_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/codec/protobuf"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// twice calls Do, and then again in another engine: its value is that of the record.
func twice[T any](t *testing.T, v T) (first, then stet.Result[T], errs [2]error) {
	t.Helper()
	s := memory.New(memory.Options{})
	op := stet.Op{Scope: "s", Key: "k"}
	o := stet.Options{Policy: stet.Policy{Values: protobuf.Values()}}
	first, errs[0] = stet.Do(t.Context(), stettest.Engine(t, s, o), op, func(context.Context) (T, error) { return v, nil })
	then, errs[1] = stet.Do(t.Context(), stettest.Engine(t, s, o), op, func(context.Context) (T, error) { t.Error("ran again"); return v, nil })
	return first, then, errs
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	d := durationpb.New(1500)
	if first, then, errs := twice(t, d); errors.Join(errs[:]...) != nil || !proto.Equal(first.Value, then.Value) || !then.Replayed {
		t.Error(first, then, errs)
	}
	if first, then, errs := twice(t, &emptypb.Empty{}); errors.Join(errs[:]...) != nil || first.Value == nil || then.Value == nil {
		t.Error("an empty message is not nil:", first, then, errs)
	}
	if first, then, errs := twice[*emptypb.Empty](t, nil); errors.Join(errs[:]...) != nil || first.Value != nil || then.Value != nil {
		t.Error("nil is not an empty message:", first, then, errs)
	}
	if first, then, errs := twice[proto.Message](t, d); errors.Join(errs[:]...) != nil || !proto.Equal(first.Value, then.Value) {
		t.Error("an interface:", first, then, errs)
	}
	if first, then, errs := twice[any](t, d); errors.Join(errs[:]...) != nil || !proto.Equal(first.Value.(proto.Message), then.Value.(proto.Message)) {
		t.Error("any:", first, then, errs)
	}
	if first, then, errs := twice(t, "no message"); errors.Join(errs[:]...) != nil || first.Value != then.Value {
		t.Error("JSON:", first, then, errs)
	}
	odd := &wrapperspb.StringValue{}
	odd.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
	if _, then, errs := twice(t, odd); errors.Join(errs[:]...) != nil || len(then.Value.ProtoReflect().GetUnknown()) != 3 {
		t.Error("fields of a newer version:", then, errs)
	}
}

func TestEqualMessagesHaveEqualBytes(t *testing.T) {
	fields := map[string]any{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		fields[name] = name
	}
	var want []byte
	for i := range 50 {
		m, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		_, b, err := protobuf.Values().Encode(m)
		if i == 0 {
			want = b
		}
		if err != nil || string(b) != string(want) {
			t.Fatal("other bytes", err)
		}
	}
}

func TestAnotherMessageIsForeignAndNotMisread(t *testing.T) {
	mediaType, body, err := protobuf.Values().Encode(wrapperspb.String("a string"))
	if err != nil || mediaType != "application/protobuf; proto=google.protobuf.StringValue" {
		t.Fatal(mediaType, err)
	}
	bytesValue := new(wrapperspb.BytesValue) // whose bytes would be read as well
	if err := protobuf.Values().Decode(mediaType, body, &bytesValue); err == nil || bytesValue.GetValue() != nil {
		t.Error(bytesValue, err)
	}
	for _, of := range []string{"application/protobuf", "application/protobuf; proto=x.Y", "application/x-protobuf", "application/octet-stream", "application/json; x"} {
		var m *wrapperspb.StringValue
		if err := protobuf.Values().Decode(of, body, &m); err == nil || m != nil {
			t.Errorf("%s: %v, %v", of, m, err)
		}
	}
	var text string
	if err := protobuf.Values().Decode(mediaType, body, &text); !errors.Is(err, codec.ErrUnsupported) {
		t.Error(err)
	}

	s := memory.New(memory.Options{})
	op := stet.Op{Scope: "s", Key: "k"}
	o := stet.Options{Policy: stet.Policy{Values: protobuf.Values()}}
	if _, err := stet.Do(t.Context(), stettest.Engine(t, s, o), op, func(context.Context) (*wrapperspb.StringValue, error) { return wrapperspb.String("x"), nil }); err != nil {
		t.Fatal(err)
	}
	_, err = stet.Do(t.Context(), stettest.Engine(t, s, o), op, func(context.Context) (*wrapperspb.BytesValue, error) { t.Error("ran again"); return nil, nil })
	if stet.KindOf(err) != stet.KindForeign || stet.ExecutionOf(err) != stet.Executed {
		t.Error(err)
	}
}

func TestJSONOfOtherAdaptersAndOfOldRecordsIsRead(t *testing.T) {
	read := func(mediaType, body string) (*durationpb.Duration, error) {
		var d *durationpb.Duration
		err := protobuf.Values().Decode(mediaType, []byte(body), &d)
		return d, err
	}
	for body, want := range map[string]int64{`"7s"`: 7, `{"seconds":7,"nanos":5}`: 7} { // protojson, encoding/json
		if d, err := read("application/json; charset=utf-8", body); err != nil || d.GetSeconds() != want {
			t.Errorf("%s: %v, %v", body, d, err)
		}
	}
	for _, body := range []string{`{"seconds":7,"minutes":5}`, `{"seconds":7} {}`, `7`, `x`} {
		if d, err := read("application/json", body); err == nil || d != nil {
			t.Errorf("%s: %v, %v", body, d, err)
		}
	}

	s := memory.New(memory.Options{})
	op := stet.Op{Scope: "s", Key: "k"}
	before := stettest.Engine(t, s, stet.Options{})
	if _, err := stet.Do(t.Context(), before, op, func(context.Context) (*durationpb.Duration, error) { return durationpb.New(5), nil }); err != nil {
		t.Fatal(err)
	}
	after := stettest.Engine(t, s, stet.Options{Policy: stet.Policy{Values: protobuf.Values()}})
	res, err := stet.Do(t.Context(), after, op, func(context.Context) (*durationpb.Duration, error) { t.Error("ran again"); return nil, nil })
	if err != nil || res.Value.GetNanos() != 5 {
		t.Error(res, err)
	}
}

// An RPC's reply is read as the message that it is.
func TestReplyOfAnRPCIsRead(t *testing.T) {
	s := memory.New(memory.Options{})
	op := stet.Op{Scope: "s", Key: "k"}
	e := stettest.Engine(t, s, stet.Options{Policy: stet.Policy{Values: protobuf.Values()}})
	mediaType, body, err := protobuf.Values().Encode(wrapperspb.String("reply"))
	if err != nil {
		t.Fatal(err)
	}
	run, err := e.Begin(t.Context(), op)
	if err != nil || run.Settle(t.Context(), stet.Outcome{Adapter: store.AdapterGRPC, Status: 200, Type: mediaType, Body: body}) != nil {
		t.Fatal(err)
	}
	res, err := stet.Do(t.Context(), e, op, func(context.Context) (*wrapperspb.StringValue, error) { t.Error("ran again"); return nil, nil })
	if err != nil || res.Value.GetValue() != "reply" {
		t.Error(res, err)
	}
}
