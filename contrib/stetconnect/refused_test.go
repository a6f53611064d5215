package stetconnect_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func charge(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
	return connect.NewResponse(receipt(1)), nil
}

// problem is what the details of an error say.
type problem struct {
	reason, execution string
	fields            map[string]any
	after             *durationpb.Duration
}

func problemOf(t *testing.T, err error) (p problem) {
	t.Helper()
	e, ok := errors.AsType[*connect.Error](err)
	if !ok {
		t.Fatalf("got %v; want a *connect.Error", err)
	}
	for _, d := range e.Details() {
		m, err := d.Value()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			p.reason, p.execution = m.GetReason(), m.GetMetadata()["execution"]
		case *errdetails.RetryInfo:
			p.after = m.GetRetryDelay()
		case *structpb.Struct:
			p.fields = m.AsMap()
		}
	}
	return p
}

// wantRefusal wants an error with this code and reason, after which nothing was executed.
func wantRefusal(t *testing.T, err error, code connect.Code, reason string) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Fatalf("got %v; want %v", err, code)
	}
	p := problemOf(t, err)
	if p.reason != reason || p.execution != "not executed" || p.fields["execution"] != "not executed" ||
		p.fields["type"] != stetconnect.ProblemBase+strings.ToLower(strings.ReplaceAll(reason, "_", "-")) || p.fields["detail"] == "" {
		t.Errorf("got %+v; want %s, not executed", p, reason)
	}
	if x := stetconnect.ExecutionOf(err); x != stet.NotExecuted {
		t.Errorf("ExecutionOf: %v", x)
	}
}

func TestUnprotectableCallIsRefusedInEveryProtocol(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
			client := s.to(w.options...)
			anonymous, failing := ask("10", "k"), ask("10", "k")
			anonymous.Header().Del("X-Account")
			failing.Header().Set("X-Account", strings.Repeat("x", store.MaxScope+1))
			misplaced := ask("10")
			misplaced.Header().Set("X-Idempotency-Key", "k")
			newer := ask("10", "k")
			newer.Msg.ProtoReflect().SetUnknown([]byte{0x7a, 1, 'x'})
			for _, c := range []struct {
				what   string
				req    *connect.Request[text]
				code   connect.Code
				reason string
			}{
				{"no key", ask("10"), connect.CodeInvalidArgument, "KEY_MISSING"},
				{"an empty key", ask("10", `""`), connect.CodeInvalidArgument, "KEY_INVALID"},
				{"two keys", ask("10", "k", "l"), connect.CodeInvalidArgument, "KEY_REPEATED"},
				{"two keys that were joined", ask("10", "k, l"), connect.CodeInvalidArgument, "KEY_INVALID"},
				{"a key too long", ask("10", strings.Repeat("k", 256)), connect.CodeInvalidArgument, "KEY_INVALID"},
				{"a key in the wrong place", misplaced, connect.CodeInvalidArgument, "KEY_MISPLACED"},
				{"no scope", anonymous, connect.CodePermissionDenied, "SCOPE_MISSING"},
				{"a scope too long", failing, connect.CodePermissionDenied, "SCOPE_TOO_LONG"},
				{"unknown fields", newer, connect.CodeInvalidArgument, "REQUEST_INDIGESTIBLE"},
			} {
				if c.what == "unknown fields" && strings.Contains(w.name, "JSON") {
					continue // they are lost on the way
				}
				_, err := client.CallUnary(t.Context(), c.req)
				t.Log(c.what)
				wantRefusal(t, err, c.code, c.reason)
			}
			s.want(t, 0)
			if _, err := client.CallUnary(t.Context(), ask("10", "k")); err != nil {
				t.Fatal(err)
			}
			_, err := client.CallUnary(t.Context(), ask("11", "k"))
			wantRefusal(t, err, connect.CodeFailedPrecondition, "MISMATCH")
			s.want(t, 1)
		})
	}
}

func TestSameRequestMatchesInEveryProtocolAndCodec(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
	for i, w := range ways() {
		key := "k"
		if i%2 > 0 {
			key = `"k"` // the same key
		}
		res, err := s.to(w.options...).CallUnary(t.Context(), ask("10", key))
		if err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		if replayed := res.Header().Get("Idempotent-Replayed") == "true"; replayed != (i > 0) {
			t.Errorf("%s: replayed is %v", w.name, replayed)
		}
	}
	s.want(t, 1)
}

func TestKeysOfOneAccountAreNotThoseOfAnother(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
	for range 2 {
		for _, account := range []string{"acct_1", "acct_2"} {
			req := ask("10", "k")
			req.Header().Set("X-Account", account)
			if _, err := s.to().CallUnary(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.want(t, 2)
}

func TestErrorOfScopeIsReturnedWithoutItsText(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{
		Scope: func(context.Context, connect.AnyRequest) (string, error) { return "", errors.New("secret database") },
	}, charge)
	_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
	wantRefusal(t, err, connect.CodeInternal, "SCOPE_FAILED")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the caller got %v", err)
	}
	if !strings.Contains(s.log.String(), "secret database") {
		t.Error("the log does not have the error")
	}
	s.want(t, 0)
}

func TestAFunctionForFingerprintsIsBelieved(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{
		Fingerprint: func(_ context.Context, req connect.AnyRequest) (store.Fingerprint, error) {
			amount := req.Any().(*text).GetValue() //nolint:forcetypeassert // a test
			if amount == "" {
				return store.Fingerprint{}, errors.New("an amount is needed")
			}
			return stet.NewFingerprint([]byte(strings.TrimLeft(amount, "0"))), nil
		},
	}, charge)
	for _, amount := range []string{"10", "010"} {
		if _, err := s.to().CallUnary(t.Context(), ask(amount, "k")); err != nil {
			t.Fatal(err)
		}
	}
	newer := ask("0010", "k")
	newer.Msg.ProtoReflect().SetUnknown([]byte{0x7a, 1, 'x'})
	if _, err := s.to().CallUnary(t.Context(), newer); err != nil {
		t.Errorf("a request with unknown fields: %v", err)
	}
	_, err := s.to().CallUnary(t.Context(), ask("", "l"))
	wantRefusal(t, err, connect.CodeInvalidArgument, "REQUEST_INDIGESTIBLE")
	s.want(t, 1)
}

func TestAnOptionalKeyMayBeMissing(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{Optional: true}, charge)
	for range 2 {
		if _, err := s.to().CallUnary(t.Context(), ask("10")); err != nil {
			t.Fatal(err)
		}
	}
	s.want(t, 2)
	for range 2 {
		if _, err := s.to().CallUnary(t.Context(), ask("10", "k")); err != nil {
			t.Fatal(err)
		}
	}
	s.want(t, 3)
	_, err := s.to().CallUnary(t.Context(), ask("10", ""))
	wantRefusal(t, err, connect.CodeInvalidArgument, "KEY_INVALID")
	misplaced := ask("10")
	misplaced.Header().Set("X-Idempotency-Key", "k")
	_, err = s.to().CallUnary(t.Context(), misplaced)
	wantRefusal(t, err, connect.CodeInvalidArgument, "KEY_MISPLACED")
	s.want(t, 3)
}

func TestAProcedureThatIsNamedPassesWithAKeyOrWithout(t *testing.T) {
	for _, name := range []string{chargePath, "payments.v1.Payments"} {
		s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{Unprotected: []string{name}}, charge)
		for _, keys := range [][]string{nil, nil, {"k"}, {"k"}} {
			if _, err := s.to().CallUnary(t.Context(), ask("10", keys...)); err != nil {
				t.Fatal(err)
			}
		}
		s.want(t, 4)
	}
}

func TestAKeyIsRefusedWhereItWouldMeanNothing(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{Procedures: []string{listPath}}, charge)
	if _, err := s.to().CallUnary(t.Context(), ask("10")); err != nil {
		t.Fatal(err)
	}
	_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
	wantRefusal(t, err, connect.CodeFailedPrecondition, "METHOD_UNPROTECTED")
	s.want(t, 1)
}

func TestAProcedureWithoutSideEffectsNeedsNoKey(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge, connect.WithIdempotency(connect.IdempotencyNoSideEffects))
	get := s.to(connect.WithIdempotency(connect.IdempotencyNoSideEffects), connect.WithHTTPGet())
	for range 2 {
		req := ask("10")
		if _, err := get.CallUnary(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if req.HTTPMethod() != http.MethodGet {
			t.Errorf("called by %s", req.HTTPMethod())
		}
	}
	s.want(t, 2)
	for i := range 2 {
		res, err := get.CallUnary(t.Context(), ask("10", "k"))
		if err != nil {
			t.Fatal(err)
		}
		if replayed := res.Header().Get("Idempotent-Replayed") == "true"; replayed != (i > 0) {
			t.Errorf("call %d: replayed is %v", i, replayed)
		}
	}
	s.want(t, 3)
}

func TestUnknownClassIsRefusedAndLogged(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{
		Class: func(context.Context, connect.AnyRequest) string { return "gold" },
	}, charge)
	_, err := s.to().CallUnary(t.Context(), ask("10", "k"))
	wantRefusal(t, err, connect.CodeInternal, "MISCONFIGURED")
	if !strings.Contains(s.log.String(), "gold") {
		t.Error("the log does not have the error")
	}
	s.want(t, 0)
}
