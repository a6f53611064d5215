package stethttp_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

func TestFingerprintOfTheServiceIsAllThatCounts(t *testing.T) {
	seen := ""
	s := start(t, setup{options: stethttp.Options{Fingerprint: func(r *http.Request, body []byte) (store.Fingerprint, error) {
		switch seen = string(body); seen {
		case "refused":
			return store.Fingerprint{}, errors.New("no order")
		case "zero":
			return store.Fingerprint{}, nil
		}
		return stet.NewFingerprint([]byte("order"), body[:1]), nil
	}}})
	first := s.order("k", "a1")
	if again := s.order("k", "a2"); first.status != 201 || again.status != 201 || again.header.Get("Idempotent-Replayed") == "" || seen != "a2" {
		t.Errorf("%d, then %d %s", first.status, again.status, again.body)
	}
	r := s.request(http.MethodPost, "/another/path", "k", "a3")
	r.Header.Set("Content-Type", "text/x-other")
	if got := s.do(r); got.header.Get("Idempotent-Replayed") == "" {
		t.Errorf("by another path: %d %s", got.status, got.body)
	}
	wantProblem(t, s.order("k", "b"), 422, "mismatch")
	s.wantRuns(1)
	for body, want := range map[string]reply{"refused": {status: 400, body: "body-invalid"}, "zero": {status: 500, body: "misconfigured"}} {
		got := s.order("new", body)
		wantProblem(t, got, want.status, want.body)
		if got.problem().Execution != stet.NotExecuted.String() || *got.problem().Retryable {
			t.Errorf("%s: %+v", body, got.problem())
		}
	}
	s.wantRuns(1)
	if got := s.order("new", "a"); got.status != 201 {
		t.Errorf("a key that was refused: %d", got.status)
	}

	_, err := stethttp.New(s.engine, stethttp.Options{Scope: stethttp.SingleTenant, Fingerprint: func(*http.Request, []byte) (store.Fingerprint, error) { return store.Fingerprint{}, nil },
		Canonicalize: func(_ string, body []byte) ([]byte, error) { return body, nil }})
	if stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), "both set") {
		t.Error(err)
	}
}

// TestResultOfACodecNeedsItsMediaTypeInAccept: a result that is neither JSON nor text is sent to a client
// that asks for it by its media type, and to no other.
func TestResultOfACodecNeedsItsMediaTypeInAccept(t *testing.T) {
	const message = "application/protobuf; proto=shop.Order"
	for _, adapter := range []store.Adapter{store.AdapterGo, store.AdapterGRPC} {
		s := start(t, setup{})
		s.stored(stet.Outcome{Adapter: adapter, Status: 200, Type: message, Body: []byte("\x0a\x01x"),
			Header: []store.Field{{Name: "x-meta", Values: []string{"v"}}}, Trailer: []store.Field{{Name: "grpc-status", Values: []string{"0"}}}})
		for accept, told := range map[string]bool{
			"": false, "*/*": false, "application/json": false, "application/protobuf": true, "text/html, application/*;q=0.5": true,
			"application/protobuf;q=0, application/*": false, "Application/Protobuf; proto=shop.Order, */*": true, "text/*": false,
		} {
			r := s.orderRequest("k", "{}")
			if accept != "" {
				r.Header.Set("Accept", accept)
			}
			got := s.do(r)
			switch {
			case told:
				if got.status != 200 || got.body != "\x0a\x01x" || got.header.Get("Content-Type") != message || got.header.Get("Idempotent-Replayed") == "" {
					t.Errorf("%v, Accept %q: %d %q %v", adapter, accept, got.status, got.body, got.header)
				}
			default:
				wantProblem(t, got, 406, "result-foreign")
				if p := got.problem(); p.Execution != stet.Executed.String() || *p.Retryable || !strings.Contains(p.Detail, message) {
					t.Errorf("%v, Accept %q: %+v", adapter, accept, p)
				}
			}
			if adapter == store.AdapterGRPC && got.header.Get("X-Meta") != "" || got.header.Get("Trailer") != "" {
				t.Errorf("metadata of gRPC is sent as fields of HTTP: %v", got.header)
			}
		}
		s.wantRuns(0)
	}
}
