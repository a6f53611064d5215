package rpc

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func text() proto.Message { return new(wrapperspb.StringValue) }

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// kept is what a store releases of an outcome.
func kept(t *testing.T, out stet.Outcome) stet.Outcome {
	t.Helper()
	e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	op := stet.Op{Scope: "s", Key: "k"}
	run, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Settle(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if run, err = e.Begin(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	return run.Outcome()
}

func TestAnEndIsReadAsItWasStored(t *testing.T) {
	md := Metadata{"a": {"1", "2", "1"}, "b-bin": {"\x00\xff", ""}}
	message, err := Marshal(wrapperspb.String("one"))
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]End{
		"success":       {Name: "google.protobuf.StringValue", Message: message, Header: md, Trailer: Metadata{"c": {"3"}}},
		"empty message": {Name: "google.protobuf.StringValue", Header: Metadata{}, Trailer: Metadata{}},
		"details": {Header: md, Trailer: md, Status: &status.Status{Code: int32(code.Code_NOT_FOUND), Message: "no 100 % ünïcode\n",
			Details: []*anypb.Any{anyOf(t, wrapperspb.String("d")), {TypeUrl: "example.com/unknown.Message", Value: []byte{1, 2}}}}},
		"unknown code": {Header: md, Trailer: md, Status: &status.Status{Code: 77, Message: "?"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := stored(kept(t, e.Outcome()))
			if !ok {
				t.Fatal("not read")
			}
			if !proto.Equal(got.Status, e.Status) || string(got.Message) != string(e.Message) || got.Name != e.Name ||
				!reflect.DeepEqual(got.Header, e.Header) || !reflect.DeepEqual(got.Trailer, e.Trailer) {
				t.Errorf("got  %v\nwant %v", got, e)
			}
		})
	}
}

func TestFieldsOfTheTransportAreNotStored(t *testing.T) {
	out := End{Header: Metadata{"Set-Cookie": {"s"}, "content-type": {"x"}, ":path": {"/"}, "grpc-status": {"3"}, "X-Kept": {"1"}}}.Outcome()
	if len(out.Header) != 1 || out.Header[0].Name != "x-kept" {
		t.Errorf("stored %v", out.Header)
	}
}

func TestAnOutcomeThatContradictsItselfIsUnreadable(t *testing.T) {
	good := End{Status: &status.Status{Code: 5, Message: "m"}}.Outcome()
	for name, damage := range map[string]func(*stet.Outcome){
		"no status":      func(o *stet.Outcome) { o.Trailer = nil },
		"not a number":   func(o *stet.Outcome) { o.Trailer[1].Values[0] = "five" },
		"another status": func(o *stet.Outcome) { o.Trailer[1].Values[0] = "6" },
		"completed":      func(o *stet.Outcome) { o.Failed = false },
		"no base64":      func(o *stet.Outcome) { o.Trailer[2].Values[0] = "?" },
		"bad metadata":   func(o *stet.Outcome) { o.Header = []store.Field{{Name: "a-bin", Values: []string{"?"}}} },
	} {
		out := kept(t, good)
		damage(&out)
		said, ok := ReadStatus(Read(out, false, text).Status)
		if !ok || said.Reason != "RESULT_UNREADABLE" || said.Retryable {
			t.Errorf("%s: %+v", name, said)
		}
	}
}

// TestOutcomeOfEachAdapterIsReturned: the table of docs/adapters.md, for gRPC.
func TestOutcomeOfEachAdapterIsReturned(t *testing.T) {
	json := "application/json"
	raw, err := proto.Marshal(wrapperspb.String("one"))
	st, serr := proto.Marshal(&status.Status{Code: 5, Message: "gone fishing"})
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	for _, c := range []struct {
		name string
		out  stet.Outcome
		want string // value, or code and reason
	}{
		{"http 200 JSON", stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: json, Body: []byte(`"one"`)}, "one"},
		{"http 201 +json", stet.Outcome{Adapter: store.AdapterHTTP, Status: 201, Type: "application/x+json; charset=utf-8", Body: []byte(`"one"`)}, "one"},
		{"http 204", stet.Outcome{Adapter: store.AdapterHTTP, Status: 204}, ""},
		{"http 200 message", stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: "application/proto", Body: raw}, "one"},
		{"http 200 text", stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: "text/plain", Body: []byte("one")}, "FAILED_PRECONDITION RESULT_FOREIGN executed"},
		{"http 200 gzip", stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: json, Body: []byte(`"one"`),
			Header: []store.Field{{Name: "Content-Encoding", Values: []string{"gzip"}}}}, "FAILED_PRECONDITION RESULT_FOREIGN executed"},
		{"http 200 other JSON", stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: json, Body: []byte(`{"id":1}`)}, "FAILED_PRECONDITION RESULT_FOREIGN executed"},
		{"http 303", stet.Outcome{Adapter: store.AdapterHTTP, Status: 303}, "FAILED_PRECONDITION RESULT_FOREIGN executed"},
		{"http 404", stet.Outcome{Adapter: store.AdapterHTTP, Status: 404, Type: json, Body: []byte(`{}`)}, "NOT_FOUND HTTP_RESPONSE executed"},
		{"http 418", stet.Outcome{Adapter: store.AdapterHTTP, Status: 418}, "FAILED_PRECONDITION HTTP_RESPONSE executed"},
		{"http 500", stet.Outcome{Adapter: store.AdapterHTTP, Status: 500, Failed: true}, "INTERNAL HTTP_RESPONSE may have executed"},
		{"http 503", stet.Outcome{Adapter: store.AdapterHTTP, Status: 503, Failed: true}, "UNAVAILABLE HTTP_RESPONSE may have executed"},
		{"go value", stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: json, Body: []byte(`"one"`)}, "one"},
		{"go null", stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: json, Body: []byte(`null`)}, ""},
		{"go number", stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: json, Body: []byte(`1`)}, "FAILED_PRECONDITION RESULT_FOREIGN executed"},
		{"go message", stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: Type("google.protobuf.StringValue"), Body: raw}, "one"},
		{"go other message", stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: Type("google.protobuf.BytesValue"), Body: raw}, "FAILED_PRECONDITION RESULT_FOREIGN executed"},
		{"go error", stet.Outcome{Adapter: store.AdapterGo, Status: 500, Failed: true, Type: "text/plain; charset=utf-8", Body: []byte("boom")}, "INTERNAL OPERATION_FAILED may have executed"},
		{"go status", stet.Outcome{Adapter: store.AdapterGo, Status: 500, Failed: true, Type: "text/plain", Body: []byte("x"),
			Trailer: []store.Field{{Name: ":error", Values: []string{StatusForm, string(st)}}}}, "NOT_FOUND"},
		{"message without a result", stet.Outcome{Adapter: store.AdapterMessage}, ""},
		{"message JSON", stet.Outcome{Adapter: store.AdapterMessage, Type: json, Body: []byte(`"one"`)}, "one"},
		{"message untyped", stet.Outcome{Adapter: store.AdapterMessage, Body: []byte(`"one"`)}, "one"},
		{"message failed", stet.Outcome{Adapter: store.AdapterMessage, Failed: true, Body: []byte("boom")}, "INTERNAL OPERATION_FAILED may have executed"},
		{"stet, nothing", stet.Outcome{}, ""},
		{"sql JSON", stet.Outcome{Adapter: store.AdapterSQL, Status: 201, Type: json, Body: []byte(`"one"`)}, "one"},
		{"sql 422", stet.Outcome{Adapter: store.AdapterSQL, Status: 422}, "INVALID_ARGUMENT HTTP_RESPONSE executed"},
		{"panicked", stet.Outcome{Failed: true, Reason: store.ReasonPanicked}, "INTERNAL HANDLER_PANICKED may have executed"},
		{"timed out", stet.Outcome{Failed: true, Reason: store.ReasonTimedOut}, "DEADLINE_EXCEEDED PROCESSING_TIMED_OUT may have executed"},
		{"cancelled", stet.Outcome{Failed: true, Reason: store.ReasonCancelled}, "CANCELLED OPERATION_CANCELLED may have executed"},
		{"exhausted", stet.Outcome{Failed: true, Reason: store.ReasonExhausted}, "INTERNAL OPERATION_FAILED may have executed"},
		{"resolved", stet.Outcome{Failed: true, Reason: store.ReasonResolved}, "INTERNAL OPERATION_FAILED may have executed"},
		{"gone", stet.Outcome{Gone: true}, "FAILED_PRECONDITION RESULT_EXPIRED executed"},
		{"grpc", End{Name: "google.protobuf.StringValue", Message: raw}.Outcome(), "one"},
		{"grpc, other message", End{Name: "google.protobuf.BytesValue", Message: raw}.Outcome(), "FAILED_PRECONDITION RESULT_FOREIGN executed"},
	} {
		e := Read(c.out, false, text)
		got := code.Code(e.Status.GetCode()).String()
		if e.OK() {
			m := new(wrapperspb.StringValue)
			if err := proto.Unmarshal(e.Message, m); err != nil {
				t.Fatal(err)
			}
			got = m.GetValue()
		} else if said, ok := ReadStatus(e.Status); ok {
			got += " " + said.Reason + " " + said.Execution.String()
		}
		if got != c.want {
			t.Errorf("%s: %s; want %s: %s", c.name, got, c.want, e.Status.GetMessage())
		}
		if !e.OK() && (len(e.Trailer[PushbackName]) != 1 || e.Trailer[PushbackName][0] != "-1") {
			t.Errorf("%s: gRPC's own policy would ask again for a stored outcome: %v", c.name, e.Trailer)
		}
	}
}

func TestOutcomeOfAnRPCIsReturned_MessageTypeUnknown(t *testing.T) {
	raw, err := proto.Marshal(wrapperspb.String("one"))
	if err != nil {
		t.Fatal(err)
	}
	if e := Read(End{Name: "a.B", Message: raw}.Outcome(), false, nil); !e.OK() || string(e.Message) != string(raw) {
		t.Errorf("got %v", e)
	}
	if e := Read(stet.Outcome{Type: "application/json", Body: []byte("1")}, false, nil); e.OK() {
		t.Error("a result of an unknown message was made up")
	}
}

func TestEachErrorOfTheEngineHasItsCode(t *testing.T) {
	canceled, deadline := context.Canceled, context.DeadlineExceeded
	no, may, yes := stet.NotExecuted, stet.MayHaveExecuted, stet.Executed
	for _, c := range []struct {
		err    *stet.Error
		ended  error
		code   code.Code
		reason string
		retry  string // of gRPC's own policy: in ms
	}{
		{&stet.Error{Kind: stet.KindMismatch, Execution: no}, nil, code.Code_FAILED_PRECONDITION, "MISMATCH", "-1"},
		{&stet.Error{Kind: stet.KindInFlight, RetryAfter: 3 * time.Second}, nil, code.Code_ABORTED, "IN_FLIGHT", "3000"},
		{&stet.Error{Kind: stet.KindInFlight}, nil, code.Code_ABORTED, "IN_FLIGHT", "1000"},
		{&stet.Error{Kind: stet.KindUnknown}, nil, code.Code_UNKNOWN, "OUTCOME_UNKNOWN", ""},
		{&stet.Error{Kind: stet.KindUnknown, RetryAfter: time.Second}, nil, code.Code_UNKNOWN, "OUTCOME_UNKNOWN", "1000"},
		{&stet.Error{Kind: stet.KindFenced}, nil, code.Code_UNKNOWN, "OUTCOME_UNKNOWN", ""},
		{&stet.Error{Kind: stet.KindStore}, nil, code.Code_UNKNOWN, "OUTCOME_UNKNOWN", ""},
		{&stet.Error{Kind: stet.KindStore, Execution: no}, nil, code.Code_UNAVAILABLE, "STORE_UNAVAILABLE", "1000"},
		{&stet.Error{Kind: stet.KindClosed, Execution: no}, canceled, code.Code_UNAVAILABLE, "STORE_UNAVAILABLE", "1000"},
		{&stet.Error{Kind: stet.KindRetryable, Execution: no}, nil, code.Code_UNAVAILABLE, "NOT_EXECUTED", "1000"},
		{&stet.Error{Kind: stet.KindExpired, Execution: yes}, nil, code.Code_FAILED_PRECONDITION, "RESULT_EXPIRED", "-1"},
		{&stet.Error{Kind: stet.KindExpired, Execution: may}, nil, code.Code_FAILED_PRECONDITION, "RESULT_EXPIRED", "-1"},
		{&stet.Error{Kind: stet.KindDamaged, Execution: yes}, nil, code.Code_DATA_LOSS, "RESULT_UNREADABLE", "-1"},
		{&stet.Error{Kind: stet.KindInvalid, Execution: no}, canceled, code.Code_CANCELLED, "REQUEST_ENDED", ""},
		{&stet.Error{Kind: stet.KindInvalid, Execution: no}, deadline, code.Code_DEADLINE_EXCEEDED, "REQUEST_ENDED", ""},
		{&stet.Error{Kind: stet.KindInvalid, Execution: no}, nil, code.Code_INTERNAL, "MISCONFIGURED", "-1"},
	} {
		e, _ := Refusal(c.err, c.ended, time.Second)
		said, ok := ReadStatus(e.Status)
		if !ok || code.Code(e.Status.Code) != c.code || said.Reason != c.reason || said.Execution != c.err.Execution {
			t.Errorf("%v: %v %+v", c.err, e.Status, said)
		}
		if got := strings.Join(e.Trailer[PushbackName], ","); got != c.retry {
			t.Errorf("%v: pushback %q; want %q", c.err, got, c.retry)
		}
		// Clients, and what maps codes to HTTP, take UNAVAILABLE for that.
		if c.code == code.Code_UNAVAILABLE && said.Execution != no {
			t.Errorf("%v: UNAVAILABLE, and not: not executed", c.err)
		}
	}
}

func TestOnlyAnErrorInfoOfStetsIsBelieved(t *testing.T) {
	st := &status.Status{Code: 14, Details: []*anypb.Any{anyOf(t, &errdetails.ErrorInfo{Reason: "IN_FLIGHT", Domain: "example.com",
		Metadata: map[string]string{ExecutionName: "not executed"}}), {TypeUrl: "?"}}}
	if said, ok := ReadStatus(st); ok || said.Execution != stet.MayHaveExecuted {
		t.Errorf("believed: %+v", said)
	}
}

func TestKeysAreThoseOfHTTP(t *testing.T) {
	for _, c := range []struct {
		md     Metadata
		key    string
		reason string
	}{
		{Metadata{KeyName: {"k1"}}, "k1", ""},
		{Metadata{KeyName: {`"k1"`}}, "k1", ""},
		{Metadata{KeyName: {`"a,b"; p=1`}}, "a,b", ""},
		{nil, "", ""},
		{Metadata{KeyName: {"a", "a"}}, "", "KEY_REPEATED"},
		{Metadata{KeyName: {"a, a"}}, "", "KEY_INVALID"},
		{Metadata{KeyName: {""}}, "", "KEY_INVALID"},
		{Metadata{KeyName: {`""`}}, "", "KEY_INVALID"},
		{Metadata{KeyName: {`"a`}}, "", "KEY_INVALID"},
		{Metadata{KeyName: {"a b"}}, "", "KEY_INVALID"},
		{Metadata{KeyName: {"é"}}, "", "KEY_INVALID"},
		{Metadata{KeyName: {strings.Repeat("k", 256)}}, "", "KEY_INVALID"},
		{Metadata{KeyName: {`"` + strings.Repeat("k", 5000) + `"`}}, "", "KEY_INVALID"},
		{Metadata{"x-idempotency-key": {"a"}}, "", "KEY_MISPLACED"},
		{Metadata{"idempotency-key-bin": {"a"}}, "", "KEY_MISPLACED"},
	} {
		key, cond, _ := Key(func(name string) []string { return c.md[name] })
		reason := ""
		if cond != nil {
			reason = cond.Reason
		}
		if key != c.key || reason != c.reason {
			t.Errorf("%v: %q, %s; want %q, %s", c.md, key, reason, c.key, c.reason)
		}
	}
}

func TestOnlyContentThatEachRetryRepeatsIsDigested(t *testing.T) {
	s, err := structpb.NewStruct(map[string]any{"a": 1, "b": map[string]any{"c": []any{"d"}}, "e": 2, "f": 3})
	if err != nil {
		t.Fatal(err)
	}
	first, flaw := Digestible(s)
	if flaw != "" {
		t.Fatal(flaw)
	}
	for range 50 {
		if again, _ := Digestible(proto.Clone(s)); string(again) != string(first) {
			t.Fatal("the same message has other bytes")
		}
	}
	s.Fields["b"].GetStructValue().Fields["c"].GetListValue().Values[0].ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01})
	if _, flaw := Digestible(s); !strings.Contains(flaw, "google.protobuf.Value") {
		t.Errorf("unknown fields inside of maps and lists: %q", flaw)
	}
	if _, flaw := Digestible(wrapperspb.String("\xff")); flaw == "" {
		t.Error("invalid UTF-8 was digested")
	}
}

func TestStatusThatCannotBeMarshalledIsReplaced(t *testing.T) {
	out := End{Status: &status.Status{Code: 3, Message: "a\xffb"}}.Outcome()
	if e, ok := stored(out); !ok || e.Status.GetMessage() != "a\uFFFDb" {
		t.Errorf("%v %v", e, ok)
	}
	if e, ok := stored(End{Status: &status.Status{Code: -1, Message: "m"}}.Outcome()); !ok || e.Status.GetCode() != int32(code.Code_UNKNOWN) || e.Status.GetMessage() != "m" {
		t.Errorf("a code that cannot be sent: %v %v", e, ok)
	}
	if escape("a%b\xc3\xbc\n~ ") != "a%25b%C3%BC%0A~ " {
		t.Error(escape("a%b\xc3\xbc\n~ "))
	}
}
