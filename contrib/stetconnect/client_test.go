package stetconnect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/store/memory"
)

// wire is a transport that notes the keys of requests, and loses the answers to the first
// few.
type wire struct {
	http.RoundTripper
	mu   sync.Mutex
	keys []string
	lose int
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.keys = append(w.keys, r.Header["Idempotency-Key"]...)
	w.lose--
	lost := w.lose >= 0
	w.mu.Unlock()
	res, err := w.RoundTripper.RoundTrip(r)
	if err == nil && lost {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return nil, errors.New("connection reset")
	}
	return res, err
}

// fast is a policy that does not wait for long.
var fast = stetclient.Policy{Base: time.Millisecond, Cap: 2 * time.Millisecond, MaxAttempts: 4}

// over returns a client of a service with the interceptor, over a wire that loses answers.
func over(t *testing.T, s *service, p stetclient.Policy, lose int, options ...connect.ClientOption) (*connect.Client[text, object], *wire) {
	t.Helper()
	w := &wire{RoundTripper: s.Client().Transport, lose: lose}
	i, err := stetconnect.NewClient(stetconnect.ClientOptions{Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return connect.NewClient[text, object](&http.Client{Transport: w}, s.URL+chargePath, append(options, connect.WithInterceptors(i))...), w
}

func TestCallWithLostResponsesIsExecutedOnceUnderOneKey(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
			client, sent := over(t, s, fast, 2, w.options...)
			req := ask("10")
			res, err := client.CallUnary(t.Context(), req)
			if err != nil || !proto.Equal(res.Msg, receipt(1)) || res.Header().Get("Idempotent-Replayed") != "true" {
				t.Fatalf("got %v, %v", res, err)
			}
			if len(sent.keys) != 3 || sent.keys[0] != sent.keys[1] || sent.keys[1] != sent.keys[2] || sent.keys[0] == "" {
				t.Errorf("keys %q; want three times the same", sent.keys)
			}
			s.want(t, 1)
			// The request may be used for another call, which is another operation.
			if len(req.Header()["Idempotency-Key"]) > 0 {
				t.Error("the key was left in the request")
			}
			if _, err := client.CallUnary(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			if len(sent.keys) != 4 || sent.keys[3] == sent.keys[0] {
				t.Errorf("keys %q; want another one for another call", sent.keys)
			}
			s.want(t, 2)
		})
	}
}

func TestAnErrorThatIsTheOutcomeIsReturnedAsItCame(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
				return nil, connect.NewError(connect.CodeUnavailable, errors.New("the bank is closed"))
			})
			for lose := range 2 {
				client, sent := over(t, s, fast, lose, w.options...)
				_, err := client.CallUnary(t.Context(), ask("10"))
				if _, wrapped := errors.AsType[*stetclient.Error](err); wrapped || connect.CodeOf(err) != connect.CodeUnavailable || stetconnect.ExecutionOf(err) != stet.Executed {
					t.Errorf("got %v, %v", err, stetconnect.ExecutionOf(err))
				}
				if len(sent.keys) != 1+lose {
					t.Errorf("%d attempts with %d lost; an outcome is not asked for again", len(sent.keys), lose)
				}
			}
		})
	}
}

func TestAMismatchIsFinal(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
			client, sent := over(t, s, fast, 0, w.options...)
			if _, err := client.CallUnary(stetconnect.WithKey(t.Context(), "a,b"), ask("10")); err != nil {
				t.Fatal(err)
			}
			_, err := client.CallUnary(t.Context(), ask("11", `"a,b"`))
			wantRefusal(t, err, connect.CodeFailedPrecondition, "MISMATCH")
			if len(sent.keys) != 2 {
				t.Errorf("%d attempts; want 2", len(sent.keys))
			}
			// After a lost attempt the operation may have executed nevertheless.
			lossy, _ := over(t, s, fast, 1, w.options...)
			_, err = lossy.CallUnary(t.Context(), ask("11", `"a,b"`))
			if e, ok := errors.AsType[*stetclient.Error](err); !ok || e.Key != "a,b" || stetconnect.ExecutionOf(err) != stet.MayHaveExecuted || connect.CodeOf(err) != connect.CodeFailedPrecondition {
				t.Errorf("got %v, %v", err, stetconnect.ExecutionOf(err))
			}
		})
	}
}

func TestAClientWaitsAsTheServerAsks(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			g := newGate()
			s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, g.handle)
			s.i.SetRetryAfter(time.Hour)
			var first sync.WaitGroup
			first.Go(func() {
				if _, err := s.to().CallUnary(t.Context(), ask("10", "k")); err != nil {
					t.Error(err)
				}
			})
			<-g.entered
			client, sent := over(t, s, fast, 0, w.options...)
			_, err := client.CallUnary(t.Context(), ask("10", "k"))
			e, ok := errors.AsType[*stetclient.Error](err)
			if !ok || e.Reason != stetclient.ReasonTime || e.RetryAfter != time.Hour || e.Key != "k" || connect.CodeOf(err) != connect.CodeAborted {
				t.Errorf("got %v", err)
			}
			if len(sent.keys) != 1 {
				t.Errorf("%d attempts; want 1", len(sent.keys))
			}
			close(g.release)
			first.Wait()
		})
	}
}

func TestCallThatCouldNotBeSentWasNotExecuted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String() + chargePath
	_ = l.Close()
	i := stetconnect.Must(stetconnect.NewClient(stetconnect.ClientOptions{Policy: fast}))
	for _, options := range [][]connect.ClientOption{nil, {connect.WithGRPCWeb()}} {
		client := connect.NewClient[text, object](&http.Client{Transport: &http.Transport{}}, url, append(options, connect.WithInterceptors(i))...)
		_, err = client.CallUnary(t.Context(), ask("10"))
		if e, ok := errors.AsType[*stetclient.Error](err); !ok || e.Attempts != 4 || stetconnect.ExecutionOf(err) != stet.NotExecuted || connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("got %v, %v", err, stetconnect.ExecutionOf(err))
		}
	}
	// Without the interceptor nothing is known.
	client := connect.NewClient[text, object](http.DefaultClient, url)
	if _, err := client.CallUnary(t.Context(), ask("10", "k")); stetconnect.ExecutionOf(err) != stet.MayHaveExecuted {
		t.Errorf("got %v, %v", err, stetconnect.ExecutionOf(err))
	}
	if stetconnect.ExecutionOf(nil) != stet.Executed {
		t.Error("no error is not executed")
	}
}

func TestACallWithTwoKeysOrABadOneIsNotSent(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, charge)
	client, sent := over(t, s, fast, 0)
	for _, c := range []struct {
		ctx context.Context
		req *connect.Request[text]
	}{
		{t.Context(), ask("10", "k", "l")},
		{stetconnect.WithKey(t.Context(), "k"), ask("10", "l")},
		{stetconnect.WithKey(t.Context(), ""), ask("10")},
		{stetconnect.WithKey(t.Context(), "with space"), ask("10")},
	} {
		if _, err := client.CallUnary(c.ctx, c.req); connect.CodeOf(err) != connect.CodeInvalidArgument || stetconnect.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("got %v, %v", err, stetconnect.ExecutionOf(err))
		}
	}
	if len(sent.keys) > 0 {
		t.Errorf("sent %q", sent.keys)
	}
	if _, err := stetconnect.NewClient(stetconnect.ClientOptions{Policy: stetclient.Policy{MaxAttempts: -1}}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("got %v", err)
	}
}

func TestSkippedCallOrCallWithoutSideEffectsHasNoKey(t *testing.T) {
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{Optional: true}, charge)
	w := &wire{RoundTripper: s.Client().Transport}
	skip := func(_ context.Context, req connect.AnyRequest) bool { return req.Header().Get("X-Skip") != "" }
	i := stetconnect.Must(stetconnect.NewClient(stetconnect.ClientOptions{Policy: fast, Skip: skip}))
	pure := connect.NewClient[text, object](&http.Client{Transport: w}, s.URL+chargePath, connect.WithInterceptors(i), connect.WithIdempotency(connect.IdempotencyNoSideEffects))
	plain := connect.NewClient[text, object](&http.Client{Transport: w}, s.URL+chargePath, connect.WithInterceptors(i))
	skipped := ask("10")
	skipped.Header().Set("X-Skip", "1")
	if _, err := plain.CallUnary(t.Context(), skipped); err != nil {
		t.Error(err)
	}
	if _, err := pure.CallUnary(t.Context(), ask("10")); err != nil {
		t.Error(err)
	}
	if len(w.keys) > 0 {
		t.Errorf("sent %q", w.keys)
	}
	if _, err := plain.CallUnary(t.Context(), ask("10")); err != nil || len(w.keys) != 1 {
		t.Errorf("sent %q, %v", w.keys, err)
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	g := newGate()
	s := serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, g.handle)
	client, sent := over(t, s, fast, 0)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-g.entered
		leave()
	}()
	_, err := client.CallUnary(ctx, ask("10", "k"))
	if e, ok := errors.AsType[*stetclient.Error](err); !ok || e.Reason != stetclient.ReasonContext || stetconnect.ExecutionOf(err) != stet.MayHaveExecuted || connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("got %v, %v", err, stetconnect.ExecutionOf(err))
	}
	if len(sent.keys) != 1 {
		t.Errorf("%d attempts; want 1", len(sent.keys))
	}
	close(g.release)
}

// TestAttemptTimeout_ServerTimerFirst: a server returns deadline_exceeded for its copy of the
// attempt's deadline, while the context of the client has not ended.
func TestAttemptTimeout_ServerTimerFirst(t *testing.T) {
	for name, c := range map[string]struct {
		attempt, caller time.Duration
		calls           int64
	}{
		"own deadline":              {time.Hour, 0, 2},
		"earlier than the caller's": {time.Hour, 2 * time.Hour, 2},
		"the caller's":              {2 * time.Hour, time.Hour, 1},
		"no deadline":               {0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			srv := listen(t, connect.NewUnaryHandler(chargePath, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
				if n := calls.Add(1); n > 1 {
					return connect.NewResponse(receipt(n)), nil
				}
				return nil, connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
			}))
			policy := fast
			policy.AttemptTimeout = c.attempt
			ctx := t.Context()
			if c.caller > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.caller)
				defer cancel()
			}
			i := stetconnect.Must(stetconnect.NewClient(stetconnect.ClientOptions{Policy: policy}))
			client := connect.NewClient[text, object](srv.Client(), srv.URL+chargePath, connect.WithInterceptors(i))
			_, err := client.CallUnary(ctx, ask("10"))
			if calls.Load() != c.calls || (err == nil) != (c.calls == 2) {
				t.Errorf("%d attempts, %v; want %d", calls.Load(), err, c.calls)
			}
		})
	}
}
