package stetmcp_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/store/sqlite"
)

// TestMain is also a server of tools, for tests that kill it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("STETMCP_TEST_CHILD"); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// child is a server over standard input and output, on an SQLite file. Its tool notes
// in a file that it has run, and then never ends, or panics.
func child(dir string) {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, filepath.Join(dir, "stet.db"), sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	o := stet.Options{Policy: stet.Policy{Lease: time.Second}}
	if os.Getenv("STETMCP_TEST_VERIFY") != "" {
		o.Policy.Verify = func(context.Context, stet.Status) (stet.Resolution, error) {
			return stet.ItHappened(stet.Outcome{Type: "text/plain; charset=utf-8", Body: []byte("it was paid")}), nil
		}
	}
	e, err := stet.New(s, o)
	if err != nil {
		log.Fatal(err)
	}
	p, err := stetmcp.New(e, single())
	if err != nil {
		log.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "child"}, nil)
	server.AddReceivingMiddleware(p.Middleware())
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, _ *mcp.CallToolRequest, in payArgs) (*mcp.CallToolResult, any, error) {
		f, err := os.OpenFile(filepath.Join(dir, "ran"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintln(f, in.Cents)
		_ = f.Close()
		if in.Note == "panic" {
			panic("at the disco")
		}
		<-ctx.Done()
		return nil, nil, context.Cause(ctx)
	})
	log.Print(server.Run(ctx, &mcp.StdioTransport{}))
}

// runs are the lines that the child's tool has written.
func runs(t *testing.T, dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, "ran"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// childOf starts the child and connects to it.
func childOf(t *testing.T, dir string, env ...string) (*mcp.ClientSession, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "STETMCP_TEST_CHILD="+dir), env...)
	c, err := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = c.Close() })
	return c, cmd
}

// eventually repeats a call until the lease of an expired run has run out.
func eventually(t *testing.T, c *mcp.ClientSession, p *mcp.CallToolParams, until func(*mcp.CallToolResult) bool) *mcp.CallToolResult {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		res := callTool(t, c, p)
		if until(res) || time.Now().After(end) {
			return res
		}
	}
}

func inFlight(t *testing.T, res *mcp.CallToolResult) bool {
	if res.Meta[problemName] == nil {
		return false
	}
	name, _ := problem(t, res)
	return name == "in-flight"
}

func TestKilledToolIsUnknownUntilTheVerifierResolvesIt(t *testing.T) {
	dir := t.TempDir()
	c, cmd := childOf(t, dir)
	gone := make(chan struct{})
	go func() { _, _ = c.CallTool(t.Context(), pay("k1", `{"cents":42}`)); close(gone) }()
	for runs(t, dir) == "" {
		time.Sleep(time.Millisecond)
	}
	_ = cmd.Process.Kill()
	<-gone
	c, cmd = childOf(t, dir)
	res := eventually(t, c, pay("k1", `{"cents":42}`), func(res *mcp.CallToolResult) bool { return !inFlight(t, res) })
	refusedAs(t, res, "outcome-unknown", "may have executed", "may have been executed or not", "tell the user", "is safe")
	_ = cmd.Process.Kill()
	c, _ = childOf(t, dir, "STETMCP_TEST_VERIFY=1")
	res = eventually(t, c, pay("k1", `{"cents":42}`), func(res *mcp.CallToolResult) bool { return !res.IsError })
	if text(res) != "it was paid" || res.Meta[replayedName] != true {
		t.Errorf("got %s", said(t, res))
	}
	if got := runs(t, dir); got != "42\n" {
		t.Errorf("the tool ran: %q", got)
	}
}

// TestAToolThatPanicsHasFailed: the process ends, as without stet, and the record says why.
func TestAToolThatPanicsHasFailed(t *testing.T) {
	dir := t.TempDir()
	c, _ := childOf(t, dir)
	if res, err := c.CallTool(t.Context(), pay("k1", `{"cents":7,"note":"panic"}`)); err == nil {
		t.Fatalf("got %s", said(t, res))
	}
	c, _ = childOf(t, dir)
	res := callTool(t, c, pay("k1", `{"cents":7,"note":"panic"}`))
	refusedAs(t, res, "operation-failed", "may have executed", "the tool broke off", "does not run again")
	if got := runs(t, dir); got != "7\n" {
		t.Errorf("the tool ran: %q", got)
	}
}
