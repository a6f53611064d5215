package stetmcp_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/memory"
)

// held is a server whose tool says that it runs, and waits until it is let go.
func held(t *testing.T, e *stet.Engine, o stetmcp.Options) (srv *payments, runs chan context.Context, let chan struct{}) {
	srv = newPayments(t, e, o)
	runs, let = make(chan context.Context, 8), make(chan struct{})
	srv.then = func(ctx context.Context, _ *mcp.CallToolRequest, in payArgs) (*mcp.CallToolResult, any, error) {
		runs <- ctx
		select {
		case <-let:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
		return nil, receipt{Number: srv.ran.Load(), Cents: in.Cents}, nil
	}
	return srv, runs, let
}

func TestACallInFlightIsJoined(t *testing.T) {
	var named atomic.Int64
	srv, runs, let := held(t, newEngine(t, stet.Options{}), stetmcp.Options{Scope: func(context.Context, *mcp.CallToolRequest) (string, error) {
		named.Add(1)
		return "all", nil
	}})
	got := make(chan *mcp.CallToolResult, 2)
	for range 2 {
		c := connect(t, srv.Server, nil)
		go func() { got <- callTool(t, c, pay("k1", `{"cents":42}`)) }()
	}
	<-runs
	stettest.Eventually(t, "the other call has come", func() bool { return named.Load() == 2 })
	close(let)
	a, b := <-got, <-got
	if said(t, a) != said(t, b) || srv.ran.Load() != 1 {
		t.Errorf("got %s and %s after %d runs", said(t, a), said(t, b), srv.ran.Load())
	}
}

func TestDuplicateOfALongCallIsInFlight(t *testing.T) {
	o := single()
	o.Wait = stet.NoWait
	srv, runs, let := held(t, newEngine(t, stet.Options{}), o)
	c := connect(t, srv.Server, nil)
	first := make(chan *mcp.CallToolResult, 1)
	go func() { first <- callTool(t, c, pay("k1", `{"cents":42}`)) }()
	<-runs
	refusedAs(t, callTool(t, c, pay("k1", `{"cents":42}`)), "in-flight", "may have executed", "Still running", "Do not use another key", "same key")
	close(let)
	<-first
}

func TestACallerThatCancelsDoesNotEndTheRun(t *testing.T) {
	srv, runs, let := held(t, newEngine(t, stet.Options{}), single())
	c := connect(t, srv.Server, nil)
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, pay("k1", `{"cents":42}`))
		gone <- err
	}()
	run := <-runs
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("the caller got %v", err)
	}
	got := make(chan *mcp.CallToolResult, 1)
	go func() { got <- callTool(t, c, pay("k1", `{"cents":42}`)) }() // joins it
	// The server handles notifications in order: with the answer it has seen the cancellation.
	if _, err := c.ListTools(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if run.Err() != nil {
		t.Errorf("the run was ended: %v", context.Cause(run))
	}
	close(let)
	if res := <-got; res.IsError || srv.ran.Load() != 1 {
		t.Errorf("got %s after %d runs", said(t, res), srv.ran.Load())
	}
}

func TestRunReportsItsProgressAndAsksItsUser(t *testing.T) {
	told := make(chan float64, 8)
	srv := newPayments(t, newEngine(t, stet.Options{}), single(), "2025-11-25")
	srv.then = func(ctx context.Context, req *mcp.CallToolRequest, in payArgs) (*mcp.CallToolResult, any, error) {
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 0.5})
		if err != nil {
			return nil, nil, err
		}
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Really?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}})
		if err != nil {
			return nil, nil, err
		}
		return nil, map[string]string{"answer": answer.Action}, nil
	}
	c := connect(t, srv.Server, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { told <- req.Params.Progress },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
	})
	for i, token := range []string{"a", "b"} {
		p := pay("k1", `{"cents":42}`)
		p.SetProgressToken(token)
		if res := callTool(t, c, p); text(res) != `{"answer":"decline"}` {
			t.Errorf("call %d got %s", i, said(t, res))
		}
	}
	if p := <-told; p != 0.5 || srv.ran.Load() != 1 {
		t.Errorf("told %v after %d runs", p, srv.ran.Load())
	}
}

// TestAToolThatAsksForInputFirstHasNotBegun does as newer clients do: the tool returns
// its question, and is called again with the answers.
func TestAToolThatAsksForInputFirstHasNotBegun(t *testing.T) {
	for _, protocol := range []string{"2026-07-28", "2025-11-25"} {
		srv := newPayments(t, newEngine(t, stet.Options{}), single(), protocol)
		srv.then = func(_ context.Context, req *mcp.CallToolRequest, in payArgs) (*mcp.CallToolResult, any, error) {
			if len(req.Params.InputResponses) == 0 {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"sure": &mcp.ElicitParams{Message: "Sure?",
					RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}}}}, nil, nil
			}
			return nil, map[string]string{"answer": req.Params.InputResponses["sure"].(*mcp.ElicitResult).Action}, nil
		}
		o := &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
		}}
		c := connect(t, srv.Server, o)
		if v := c.InitializeResult().ProtocolVersion; v != protocol {
			t.Fatalf("the protocol is %s", v)
		}
		for range 2 {
			if res := callTool(t, c, pay("k1", `{"cents":42}`)); text(res) != `{"answer":"accept"}` {
				t.Errorf("%q got %s", protocol, said(t, res))
			}
		}
		if n := srv.ran.Load(); n != 2 {
			t.Errorf("the tool was called %d times; want once to ask, and once to run", n)
		}
	}
}

func TestUnknownOutcomeHasAText(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	srv.then = func(ctx context.Context, _ *mcp.CallToolRequest, _ payArgs) (*mcp.CallToolResult, any, error) {
		stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
		return nil, nil, errors.New("the bank did not answer")
	}
	c := connect(t, srv.Server, nil)
	for range 2 {
		refusedAs(t, callTool(t, c, pay("k1", `{"cents":42}`)), "outcome-unknown", "may have executed",
			"may have been executed or not", "with another key", "tell the user", "with the same arguments and the same key in _meta is safe")
	}
	if n := srv.ran.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestResolutionOfAVerifierIsReturned(t *testing.T) {
	ask := func(context.Context, stet.Status) (stet.Resolution, error) {
		return stet.ItHappened(stet.Outcome{Type: "application/json", Body: []byte(`{"number":7}`)}), nil
	}
	srv := newPayments(t, newEngine(t, stet.Options{Policy: stet.Policy{Verify: ask}}), single())
	srv.then = func(ctx context.Context, _ *mcp.CallToolRequest, _ payArgs) (*mcp.CallToolResult, any, error) {
		stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
		return nil, nil, errors.New("the bank did not answer")
	}
	c := connect(t, srv.Server, nil)
	refusedAs(t, callTool(t, c, pay("k1", `{"cents":42}`)), "outcome-unknown", "may have executed")
	res := callTool(t, c, pay("k1", `{"cents":42}`))
	if res.IsError || text(res) != `{"number":7}` || res.StructuredContent.(map[string]any)["number"] != 7.0 || res.Meta[replayedName] != true {
		t.Errorf("got %s", said(t, res))
	}
}

func TestARunOutOfTimeIsUnknown(t *testing.T) {
	o := stet.Options{Policy: stet.Policy{RunTimeout: 50 * time.Millisecond}}
	srv, runs, _ := held(t, newEngine(t, o), single())
	c := connect(t, srv.Server, nil)
	res := callTool(t, c, pay("k1", `{"cents":42}`))
	<-runs
	refusedAs(t, res, "outcome-unknown", "may have executed")
}

func TestWithoutAStoreNothingRuns(t *testing.T) {
	s := memory.New(memory.Options{MaxRecords: 1})
	srv := newPayments(t, engineOver(t, s, stet.Options{StoreTimeout: 100 * time.Millisecond}), single())
	c := connect(t, srv.Server, nil)
	callTool(t, c, pay("k1", `{"cents":42}`))
	refusedAs(t, callTool(t, c, pay("k2", `{"cents":42}`)), "store-unavailable", "not executed", "safe to call it again later")
	if n := srv.ran.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// TestAServerEndsAfterItsRuns: the client closes the connection while a tool runs, as a host
// does that ends a server over standard input and output.
func TestAServerEndsAfterItsRuns(t *testing.T) {
	srv, runs, let := held(t, newEngine(t, stet.Options{}), single())
	here, there := mcp.NewInMemoryTransports()
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(context.Background(), there) }()
	c := must[*mcp.ClientSession](t)(mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil).Connect(context.Background(), here, nil))
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() { _, _ = c.CallTool(ctx, pay("k1", `{"cents":42}`)); close(left) }()
	run := <-runs
	cancel()
	<-left
	_ = c.Close()
	select {
	case err := <-ended:
		t.Errorf("the server has ended while a tool runs: %v", err)
	case <-time.After(100 * time.Millisecond): // it would have
	}
	if run.Err() != nil {
		t.Errorf("the run was ended: %v", context.Cause(run))
	}
	close(let)
	<-ended
	again := connect(t, srv.Server, nil)
	if res := callTool(t, again, pay("k1", `{"cents":42}`)); res.IsError || srv.ran.Load() != 1 {
		t.Errorf("got %s after %d runs", said(t, res), srv.ran.Load())
	}
}
