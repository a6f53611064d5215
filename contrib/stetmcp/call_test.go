package stetmcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/store"
)

func TestARepeatedCallRunsOnceAndGetsTheSameResult(t *testing.T) {
	for name, s := range map[string]store.Store{"memory": nil, "sqlite": newSQLite(t)} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, stet.Options{})
			if s != nil {
				e = engineOver(t, s, stet.Options{})
			}
			srv := newPayments(t, e, single())
			c := connect(t, srv.Server, nil)
			first := callTool(t, c, pay("k1", `{"cents":42}`))
			again := callTool(t, c, pay("k1", `{"cents":42}`))
			if first.Meta[replayedName] != nil || again.Meta[replayedName] != true {
				t.Errorf("replayed is %v and then %v", first.Meta[replayedName], again.Meta[replayedName])
			}
			if said(t, first) != said(t, again) || !strings.Contains(said(t, first), `"structuredContent":{"cents":42,"number":1}`) {
				t.Errorf("first %s, again %s", said(t, first), said(t, again))
			}
			if n := srv.ran.Load(); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// TestTheReplayIsTheSameBytes has values that doubles and maps would lose.
func TestTheReplayIsTheSameBytes(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	srv.then = func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{
			Meta:              mcp.Meta{"com.example/order": json.Number("9007199254740993"), "b": nil, "a": []any{1, "<&>"}},
			StructuredContent: json.RawMessage(`{"z":9007199254740993,"a":1.50,"t":"<b>\u00e9"}`),
			Content: []mcp.Content{
				&mcp.TextContent{Text: "a <b> & c", Annotations: &mcp.Annotations{Priority: 0.5}},
				&mcp.ImageContent{MIMEType: "image/png", Data: []byte{0, 255, 1}},
				&mcp.ResourceLink{URI: "file:///x", Name: "x"},
				&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///y", Text: "y"}},
			},
		}, nil, nil
	}
	var raw []string
	srv.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if method == "tools/call" {
				sent := strings.Replace(string(must[[]byte](t)(json.Marshal(res))), `"io.github.stet-go/replayed":true`, "", 1)
				raw = append(raw, strings.Replace(sent, `9007199254740993,}`, `9007199254740993}`, 1))
			}
			return res, err
		}
	})
	c := connect(t, srv.Server, nil)
	callTool(t, c, pay("k1", `{"cents":42}`))
	callTool(t, c, pay("k1", `{"cents":42}`))
	if len(raw) != 2 || raw[0] != raw[1] {
		t.Errorf("sent\n%s\nand then\n%s", raw[0], raw[1])
	}
	if !strings.Contains(raw[0], `{"z":9007199254740993,"a":1.50`) || !strings.Contains(raw[0], `order":9007199254740993`) || !strings.Contains(raw[0], "AP8B") {
		t.Errorf("sent %s", raw[0])
	}
}

func TestAnErrorOfAToolIsReplayed(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	srv.then = func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("card declined, try %d", srv.ran.Load())
	}
	c := connect(t, srv.Server, nil)
	for range 2 {
		if res := callTool(t, c, pay("k1", `{"cents":42}`)); !res.IsError || text(res) != "card declined, try 1" {
			t.Errorf("got %s", said(t, res))
		}
	}
}

func TestAnErrorOfTheProtocolIsReplayed(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	srv.then = func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		return nil, nil, &jsonrpc.Error{Code: -31000, Message: fmt.Sprint("try ", srv.ran.Load()), Data: json.RawMessage(`{"a":1}`)}
	}
	c := connect(t, srv.Server, nil)
	for range 2 {
		_, err := c.CallTool(context.Background(), pay("k1", `{"cents":42}`))
		own, ok := errors.AsType[*jsonrpc.Error](err)
		if !ok || own.Code != -31000 || !strings.Contains(own.Message, "try 1") || string(own.Data) != `{"a":1}` {
			t.Errorf("got %v", err)
		}
	}
}

func TestToolThatDeclaresNotExecutedRunsAgain(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	srv.then = func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		if srv.ran.Load() == 1 {
			return nil, nil, stet.Retryable(errors.New("the bank is closed"))
		}
		return nil, receipt{Number: srv.ran.Load()}, nil
	}
	c := connect(t, srv.Server, nil)
	refusedAs(t, callTool(t, c, pay("k1", `{"cents":42}`)), "not-executed", "not executed", "the bank is closed", "safe to call it again", "same key")
	if res := callTool(t, c, pay("k1", `{"cents":42}`)); res.IsError || srv.ran.Load() != 2 {
		t.Errorf("got %s after %d runs", said(t, res), srv.ran.Load())
	}
}

func TestAKeyOfAnotherCallIsRefused(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	mcp.AddTool(srv.Server, &mcp.Tool{Name: "refund"}, func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		srv.ran.Add(1)
		return nil, nil, nil
	})
	c := connect(t, srv.Server, nil)
	callTool(t, c, pay("k1", `{"cents":42}`))
	other := pay("k1", `{"cents":42}`)
	other.Name = "refund"
	for _, p := range []*mcp.CallToolParams{pay("k1", `{"cents":43}`), other} {
		refusedAs(t, callTool(t, c, p), "mismatch", "not executed", "new key")
	}
	if n := srv.ran.Load(); n != 1 {
		t.Errorf("tools ran %d times", n)
	}
}

func TestCallWithoutIdentityIsRefusedWithAText(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	c := connect(t, srv.Server, nil)
	with := func(key any) *mcp.CallToolParams {
		p := pay("", `{"cents":1}`)
		p.Meta = mcp.Meta{stetmcp.DefaultKeyName: key}
		return p
	}
	for name, tc := range map[string]struct {
		params  *mcp.CallToolParams
		problem string
		words   string
	}{
		"no key":                 {pay("", `{"cents":1}`), "key-missing", `Call it again with _meta {"io.github.stet-go/idempotency-key": "<key>"}`},
		"empty":                  {with(""), "key-invalid", "empty"},
		"a number":               {with(17), "key-invalid", "not a text"},
		"null":                   {with(nil), "key-invalid", "not a text"},
		"a list":                 {with([]any{"a", "b"}), "key-invalid", "not a text"},
		"too long":               {with(strings.Repeat("k", 256)), "key-invalid", "longer than 255 bytes"},
		"not ASCII":              {with("schlüssel"), "key-invalid", "visible ASCII"},
		"a space":                {with("a b"), "key-invalid", "visible ASCII"},
		"a member twice":         {pay("k", `{"cents":1,"cents":2}`), "body-invalid", "each member once"},
		"a member twice, within": {pay("k", `{"cents":1,"x":{"a":1,"\u0061":2}}`), "body-invalid", "each member once"},
	} {
		t.Run(name, func(t *testing.T) {
			refusedAs(t, callTool(t, c, tc.params), tc.problem, "not executed", tc.words, "Not executed")
		})
	}
	if n := srv.ran.Load(); n != 0 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestTwoWaysToWriteTheSameArgumentsAreOneCall(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	c := connect(t, srv.Server, nil)
	callTool(t, c, pay("k1", `{"cents":100,"note":"é"}`))
	for _, same := range []string{`{ "note":"\u00e9", "cents":100 }`, `{"cents":100.0,"note":"é"}`, `{"cents":1e2,"note":"é"}`} {
		if res := callTool(t, c, pay("k1", same)); res.Meta[replayedName] != true {
			t.Errorf("%s: %s", same, said(t, res))
		}
	}
	callTool(t, c, pay("k2", `{"cents":9007199254740993}`))
	refusedAs(t, callTool(t, c, pay("k2", `{"cents":9007199254740992}`)), "mismatch", "not executed")
}

func TestScopesDoNotShareKeys(t *testing.T) {
	who := "ann"
	srv := newPayments(t, newEngine(t, stet.Options{}), stetmcp.Options{Scope: func(context.Context, *mcp.CallToolRequest) (string, error) {
		if who == "broken" {
			return "", errors.New("the directory is down")
		}
		return who, nil
	}})
	c := connect(t, srv.Server, nil)
	for _, who = range []string{"ann", "bob"} {
		if res := callTool(t, c, pay("k1", `{"cents":42}`)); res.Meta[replayedName] != nil {
			t.Errorf("%s got the result of another scope", who)
		}
	}
	who = ""
	refusedAs(t, callTool(t, c, pay("k1", `{"cents":42}`)), "scope-missing", "not executed")
	who = "broken"
	res := callTool(t, c, pay("k1", `{"cents":42}`))
	refusedAs(t, res, "scope-failed", "not executed")
	if strings.Contains(text(res), "directory") {
		t.Errorf("the caller gets the internal error: %s", text(res))
	}
	if n := srv.ran.Load(); n != 2 {
		t.Errorf("the tool ran %d times", n)
	}
}

// TestAFaultOfTheServersOwnOptionsRunsNothing: a call that makes them panic does not end the
// process, and calls that they do not tell apart are not taken for one.
func TestAFaultOfTheServersOwnOptionsRunsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		o       stetmcp.Options
		problem string
	}{
		"Scope panics": {stetmcp.Options{Scope: func(_ context.Context, req *mcp.CallToolRequest) (string, error) {
			return req.Extra.TokenInfo.UserID, nil // there is none
		}}, "scope-failed"},
		"Fingerprint panics": {stetmcp.Options{Scope: stetmcp.SingleTenant, Fingerprint: func(*mcp.CallToolRequest) store.Fingerprint { panic("secret") }}, "misconfigured"},
		"no Fingerprint":     {stetmcp.Options{Scope: stetmcp.SingleTenant, Fingerprint: func(*mcp.CallToolRequest) (fp store.Fingerprint) { return fp }}, "misconfigured"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newPayments(t, newEngine(t, stet.Options{}), tc.o)
			c := connect(t, srv.Server, nil)
			res := callTool(t, c, pay("k1", `{"cents":42}`))
			if refusedAs(t, res, tc.problem, "not executed"); srv.ran.Load() != 0 || strings.Contains(text(res), "secret") {
				t.Errorf("got %s after %d runs", said(t, res), srv.ran.Load())
			}
		})
	}
}

func TestAToolThatDoesNotExistLeavesNothing(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	c := connect(t, srv.Server, nil)
	later := &mcp.CallToolParams{Name: "later", Meta: mcp.Meta{stetmcp.DefaultKeyName: "k1"}}
	_, err := c.CallTool(context.Background(), later)
	if own, ok := errors.AsType[*jsonrpc.Error](err); !ok || own.Code != jsonrpc.CodeInvalidParams {
		t.Fatalf("got %v", err)
	}
	mcp.AddTool(srv.Server, &mcp.Tool{Name: "later"}, func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	if res := callTool(t, c, later); res.IsError || res.Meta[replayedName] != nil {
		t.Errorf("got %s", said(t, res))
	}
}

func TestAResultThatIsTooLargeIsNotRunAgain(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{Policy: stet.Policy{MaxResult: 100}}), single())
	srv.then = func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		return nil, map[string]string{"a": strings.Repeat("x", 1000)}, nil
	}
	c := connect(t, srv.Server, nil)
	if res := callTool(t, c, pay("k1", `{"cents":42}`)); res.IsError || !strings.Contains(said(t, res), "xxxxx") {
		t.Errorf("the first caller got %s", said(t, res))
	}
	refusedAs(t, callTool(t, c, pay("k1", `{"cents":42}`)), "result-expired", "executed", "does not run again")
	if n := srv.ran.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// TestResultThatCannotBeSentIsExecuted: without stet the SDK sends nothing.
func TestResultThatCannotBeSentIsExecuted(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	srv.AddTool(&mcp.Tool{Name: "raw", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		srv.ran.Add(1)
		return &mcp.CallToolResult{StructuredContent: func() {}}, nil
	})
	c := connect(t, srv.Server, nil)
	for range 2 {
		p := pay("k1", `{}`)
		p.Name = "raw"
		refusedAs(t, callTool(t, c, p), "result-expired", "executed", "does not run again")
	}
	if n := srv.ran.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestHugeArguments(t *testing.T) {
	srv := newPayments(t, newEngine(t, stet.Options{}), single())
	c := connect(t, srv.Server, nil)
	args := `{"cents":1,"note":"` + strings.Repeat("x", 4<<20) + `"}`
	callTool(t, c, pay("k1", args))
	if res := callTool(t, c, pay("k1", args)); res.Meta[replayedName] != true {
		t.Error("not a replay")
	}
	refusedAs(t, callTool(t, c, pay("k1", strings.Replace(args, "x\"", "y\"", 1))), "mismatch", "not executed")
}
