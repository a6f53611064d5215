package stetmcp_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

const (
	replayedName  = "io.github.stet-go/replayed"
	protectedName = "io.github.stet-go/protected"
	problemName   = "io.github.stet-go/problem"
	policyName    = "io.github.stet-go/idempotency"
)

// must stops a test that cannot continue.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newEngine(t testing.TB, o stet.Options) *stet.Engine {
	return engineOver(t, memory.New(memory.Options{}), o)
}

func engineOver(t testing.TB, s store.Store, o stet.Options) *stet.Engine {
	e := must[*stet.Engine](t)(stet.New(s, o))
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func newSQLite(t testing.TB) *sqlite.Store {
	s := must[*sqlite.Store](t)(sqlite.Open(context.Background(), t.TempDir()+"/stet.db", sqlite.Options{}))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

type payArgs struct {
	Cents int    `json:"cents"`
	Note  string `json:"note,omitempty"`
}

type receipt struct {
	Number int64 `json:"number"`
	Cents  int   `json:"cents"`
}

// payments is a server with a tool that counts how often it ran.
type payments struct {
	*mcp.Server
	ran atomic.Int64
	// then, if set, is what the tool does after it has counted.
	then func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error)
}

func newPayments(t testing.TB, e *stet.Engine, o stetmcp.Options, versions ...string) *payments {
	p := must[*stetmcp.Protector](t)(stetmcp.New(e, o))
	s := &payments{Server: mcp.NewServer(&mcp.Implementation{Name: "payments"}, &mcp.ServerOptions{SupportedProtocolVersions: versions})}
	mcp.AddTool(s.Server, &mcp.Tool{Name: "pay", Description: "Pays."}, func(ctx context.Context, req *mcp.CallToolRequest, in payArgs) (*mcp.CallToolResult, any, error) {
		n := s.ran.Add(1)
		if s.then != nil {
			return s.then(ctx, req, in)
		}
		return nil, receipt{Number: n, Cents: in.Cents}, nil
	})
	s.AddReceivingMiddleware(p.Middleware())
	return s
}

func single() stetmcp.Options { return stetmcp.Options{Scope: stetmcp.SingleTenant} }

// connect returns a session of a client of the server, in memory.
func connect(t testing.TB, s *mcp.Server, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	must[*mcp.ServerSession](t)(s.Connect(context.Background(), there, nil))
	c := must[*mcp.ClientSession](t)(mcp.NewClient(&mcp.Implementation{Name: "agent"}, o).Connect(context.Background(), here, nil))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// pay is a call of the tool; the key may be "" for none.
func pay(key, args string) *mcp.CallToolParams {
	p := &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(args)}
	if key != "" {
		p.Meta = mcp.Meta{stetmcp.DefaultKeyName: key}
	}
	return p
}

func callTool(t testing.TB, c *mcp.ClientSession, p *mcp.CallToolParams) *mcp.CallToolResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return must[*mcp.CallToolResult](t)(c.CallTool(ctx, p))
}

// said is a result as JSON, without what says that it is a replay.
func said(t testing.TB, res *mcp.CallToolResult) string {
	t.Helper()
	plain := *res
	plain.Meta = mcp.Meta{}
	for k, v := range res.Meta {
		if k != replayedName {
			plain.Meta[k] = v
		}
	}
	return string(must[[]byte](t)(json.Marshal(&plain)))
}

func text(res *mcp.CallToolResult) string {
	var all []string
	for _, c := range res.Content {
		if tc, ok := c.(*mcp.TextContent); ok {
			all = append(all, tc.Text)
		}
	}
	return strings.Join(all, "\n")
}

// problem is what a refusal tells programs.
func problem(t testing.TB, res *mcp.CallToolResult) (name, execution string) {
	t.Helper()
	p, ok := res.Meta[problemName].(map[string]any)
	if !ok {
		t.Fatalf("the result is no refusal: %s", said(t, res))
	}
	if !res.IsError {
		t.Errorf("a refusal must be an error: %s", said(t, res))
	}
	_, name, _ = strings.Cut(p["type"].(string), "#")
	return name, p["execution"].(string)
}

// refusedAs checks a refusal and its text.
func refusedAs(t testing.TB, res *mcp.CallToolResult, name, execution string, words ...string) {
	t.Helper()
	if n, x := problem(t, res); n != name || x != execution {
		t.Errorf("refused as %s, %s; want %s, %s", n, x, name, execution)
	}
	for _, w := range words {
		if !strings.Contains(text(res), w) {
			t.Errorf("the words %q do not have %q", text(res), w)
		}
	}
}
