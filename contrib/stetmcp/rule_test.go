package stetmcp_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/store"
)

const window = 10 * time.Minute

// windowed is for a tool whose calls need no key.
func windowed() (stet.Options, stetmcp.Options) {
	brief := stet.Policy{Retention: store.Retention{Result: window, Tombstone: window}}
	engineOptions := stet.Options{Classes: map[string]stet.Policy{"brief": brief}}
	options := stetmcp.Options{Scope: stetmcp.SingleTenant, Tools: map[string]stetmcp.Rule{"pay": {Window: window, Class: "brief"}}}
	return engineOptions, options
}

func TestTheSameArgumentsWithinTheWindowAreOneCall(t *testing.T) {
	eo, o := windowed()
	srv := newPayments(t, newEngine(t, eo), o)
	c := connect(t, srv.Server, nil)
	first := callTool(t, c, pay("", `{"cents":100,"note":"rent"}`))
	for _, same := range []string{`{"cents":100,"note":"rent"}`, `{"note":"rent","cents":1.00e2}`} {
		if res := callTool(t, c, pay("", same)); res.Meta[replayedName] != true || said(t, res) != said(t, first) {
			t.Errorf("got %s, want %s", said(t, res), said(t, first))
		}
	}
	callTool(t, c, pay("", `{"cents":101,"note":"rent"}`))
	callTool(t, c, pay("mine", `{"cents":100,"note":"rent"}`)) // a key is an intent of its own
	if n := srv.ran.Load(); n != 3 {
		t.Errorf("the tool ran %d times; want 3", n)
	}
}

// TestAfterTheWindowACallIsANewOne moves the store's clock.
func TestAfterTheWindowACallIsANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eo, o := windowed()
		srv := newPayments(t, newEngine(t, eo), o)
		c := connect(t, srv.Server, nil)
		callTool(t, c, pay("", `{"cents":100}`))
		time.Sleep(window - time.Second)
		if res := callTool(t, c, pay("", `{"cents":100}`)); res.Meta[replayedName] != true {
			t.Errorf("within the window it got %s", said(t, res))
		}
		time.Sleep(2 * time.Second)
		if res := callTool(t, c, pay("", `{"cents":100}`)); res.Meta[replayedName] != nil || srv.ran.Load() != 2 {
			t.Errorf("after the window it got %s, and ran %d times", said(t, res), srv.ran.Load())
		}
		_ = c.Close()
	})
}

func TestListOfToolsMatchesTheRules(t *testing.T) {
	eo, o := windowed()
	o.Tools["free"] = stetmcp.Rule{Unprotected: true}
	o.Tools["maybe"] = stetmcp.Rule{Optional: true}
	srv := newPayments(t, newEngine(t, eo), o)
	destructive := false
	own := map[string]*mcp.Tool{}
	for _, tool := range []*mcp.Tool{
		{Name: "keyed", Description: "As it was.", Annotations: &mcp.ToolAnnotations{DestructiveHint: &destructive, Title: "Keyed"}},
		{Name: "look", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		{Name: "free"}, {Name: "maybe"},
	} {
		own[tool.Name] = tool
		tool.InputSchema = map[string]any{"type": "object"}
		srv.AddTool(tool, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, nil })
	}
	c := connect(t, srv.Server, nil)
	got := map[string]*mcp.Tool{}
	for tool, err := range c.Tools(context.Background(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		got[tool.Name] = tool
	}
	idempotent := func(tool *mcp.Tool) bool { return tool.Annotations != nil && tool.Annotations.IdempotentHint }
	for name, want := range map[string]bool{"pay": true, "keyed": false, "look": false, "free": false, "maybe": false} {
		if idempotent(got[name]) != want {
			t.Errorf("%s: idempotentHint is %v", name, !want)
		}
	}
	if d := got["pay"].Description; !strings.HasPrefix(d, "Pays.") || !strings.Contains(d, "exactly the same arguments (and the same key, if they have one) within 10m0s are one action") {
		t.Errorf("pay is described as %q", d)
	}
	if k := got["keyed"]; k.Description != "As it was." || k.Annotations.DestructiveHint == nil || *k.Annotations.DestructiveHint || k.Annotations.Title != "Keyed" {
		t.Errorf("keyed has changed: %+v", k)
	}
	for name, key := range map[string]any{"pay": "derived", "keyed": "required", "maybe": "optional", "look": nil, "free": nil} {
		p, _ := got[name].Meta[policyName].(map[string]any)
		if p["key"] != key || key != nil && p["keyName"] != stetmcp.DefaultKeyName {
			t.Errorf("%s: _meta has %v", name, p)
		}
	}
	if own["keyed"].Meta != nil {
		t.Error("the server's own tool was changed")
	}
}

func TestUnprotectedResultIsMarked(t *testing.T) {
	o := single()
	o.Tools = map[string]stetmcp.Rule{"pay": {Optional: true}, "free": {Unprotected: true}}
	srv := newPayments(t, newEngine(t, stet.Options{}), o)
	count := func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
		srv.ran.Add(1)
		return nil, nil, nil
	}
	mcp.AddTool(srv.Server, &mcp.Tool{Name: "free"}, count)
	mcp.AddTool(srv.Server, &mcp.Tool{Name: "look", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, count)
	mcp.AddTool(srv.Server, &mcp.Tool{Name: "other"}, count)
	c := connect(t, srv.Server, nil)
	for _, tc := range []struct {
		tool, key string
		says      any
		runs      int64
	}{{"pay", "", false, 2}, {"pay", "k", nil, 1}, {"free", "", nil, 2}, {"free", "k", false, 2}, {"look", "k", nil, 2}, {"other", "k", nil, 1}} {
		srv.ran.Store(0)
		for range 2 {
			p := pay(tc.key, `{"cents":1}`)
			if p.Name = tc.tool; tc.key != "" {
				p.Meta[stetmcp.DefaultKeyName] = tc.tool + tc.key
			}
			if res := callTool(t, c, p); res.IsError || res.Meta[protectedName] != tc.says {
				t.Errorf("%s, key %q: %s", tc.tool, tc.key, said(t, res))
			}
		}
		if n := srv.ran.Load(); n != tc.runs {
			t.Errorf("%s, key %q: ran %d times; want %d", tc.tool, tc.key, n, tc.runs)
		}
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	e := newEngine(t, stet.Options{Classes: map[string]stet.Policy{"long": {}}})
	for _, tc := range []struct {
		o     stetmcp.Options
		words string
	}{
		{stetmcp.Options{}, "Scope"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, KeyName: "two/slashes/"}, "KeyName"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, KeyName: "io.modelcontextprotocol/key"}, "reserved"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, Wait: -1}, "Wait"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, Wait: time.Hour}, "Wait"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, Default: stetmcp.Rule{Class: "none"}}, "Classes"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, Default: stetmcp.Rule{Window: window}}, "Retention: store.Retention{Result: 10m0s, Tombstone: 10m0s}"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, Tools: map[string]stetmcp.Rule{"pay": {Window: -1}}}, "negative"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, Tools: map[string]stetmcp.Rule{"pay": {Unprotected: true, Optional: true}}}, "Unprotected"},
		{stetmcp.Options{Scope: stetmcp.SingleTenant, Tools: map[string]stetmcp.Rule{"pay": {Optional: true, Window: window}}}, "Optional"},
	} {
		if _, err := stetmcp.New(e, tc.o); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%+v: %v; want words of %s", tc.o, err, tc.words)
		}
	}
	if _, err := stetmcp.New(nil, single()); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}

func TestAMiddlewareOfAClientIsRefused(t *testing.T) {
	p := must[*stetmcp.Protector](t)(stetmcp.New(newEngine(t, stet.Options{}), single()))
	here, there := mcp.NewInMemoryTransports()
	must[*mcp.ServerSession](t)(mcp.NewServer(&mcp.Implementation{Name: "s"}, nil).Connect(context.Background(), there, nil))
	client := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil)
	client.AddSendingMiddleware(p.Middleware())
	if _, err := client.Connect(context.Background(), here, nil); err == nil || !strings.Contains(err.Error(), "server.AddReceivingMiddleware") {
		t.Errorf("got %v", err)
	}
}

func TestTwoMiddlewaresAroundEachOtherAreLoud(t *testing.T) {
	e := newEngine(t, stet.Options{})
	srv := newPayments(t, e, single())
	srv.AddReceivingMiddleware(must[*stetmcp.Protector](t)(stetmcp.New(e, single())).Middleware())
	c := connect(t, srv.Server, nil)
	refusedAs(t, callTool(t, c, pay("k1", `{"cents":1}`)), "misconfigured", "not executed")
	if n := srv.ran.Load(); n != 0 {
		t.Errorf("the tool ran %d times", n)
	}
}

// TestSendingMiddlewareIsRefused: no call of a tool would pass it.
func TestSendingMiddlewareIsRefused(t *testing.T) {
	p := must[*stetmcp.Protector](t)(stetmcp.New(newEngine(t, stet.Options{}), single()))
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "server.AddReceivingMiddleware(p.Middleware())") {
			t.Errorf("got %q", text)
		}
	}()
	own := func(next mcp.MethodHandler) mcp.MethodHandler { return p.Middleware()(next) }
	mcp.NewServer(&mcp.Implementation{Name: "payments"}, nil).AddSendingMiddleware(own)
}
