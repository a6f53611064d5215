package stetmcp_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var listens = regexp.MustCompile(`"listening for traffic" url=(http://\S+)`)

// sidecar starts 'stet proxy' in front of a URL, and returns the URL of its /mcp.
func sidecar(t *testing.T, bin, upstream string) string {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("upstream: {url: %q}\nlisten: 127.0.0.1:0\nadmin: {listen: '127.0.0.1:0'}\nstore: %s\nscope: single-tenant\nroutes:\n  - path: /mcp\n    mcp: {unprotected: [look]}\n",
		upstream, filepath.Join(dir, "stet.db"))
	file := filepath.Join(dir, "stet.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "proxy", "--config", file)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGKILL); _ = cmd.Wait() })
	lines, said := bufio.NewScanner(errs), ""
	for lines.Scan() {
		said += lines.Text() + "\n"
		if m := listens.FindStringSubmatch(lines.Text()); m != nil {
			go func() { // so that it never waits for a reader
				for lines.Scan() {
				}
			}()
			return m[1] + "/mcp"
		}
	}
	t.Fatalf("stet proxy does not listen:\n%s", said)
	return ""
}

// TestBehindTheSidecar has a server that knows nothing of stet, and a client of the SDK.
func TestBehindTheSidecar(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "stet")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", bin, "./cmd/stet").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, o := range map[string]*mcp.StreamableHTTPOptions{"events": nil, "JSON": {JSONResponse: true}, "stateless": {Stateless: true}} {
		t.Run(name, func(t *testing.T) { behindSidecar(t, bin, o) })
	}
}

func behindSidecar(t *testing.T, bin string, o *mcp.StreamableHTTPOptions) {
	srv := &payments{Server: mcp.NewServer(&mcp.Implementation{Name: "payments"}, nil)}
	mcp.AddTool(srv.Server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, req *mcp.CallToolRequest, in payArgs) (*mcp.CallToolResult, any, error) {
		n := srv.ran.Add(1)
		if token := req.Params.GetProgressToken(); token != nil && o == nil {
			if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 0.5}); err != nil {
				return nil, nil, err
			}
		}
		if in.Note == "fail" {
			return nil, nil, fmt.Errorf("try %d failed", n)
		}
		return nil, receipt{Number: 9007199254740993, Cents: in.Cents}, nil
	})
	looked := 0
	mcp.AddTool(srv.Server, &mcp.Tool{Name: "look"}, func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
		looked++
		return nil, nil, nil
	})
	url := sidecar(t, bin, overHTTP(t, srv.Server, o, nil))

	told := make(chan float64, 8)
	transport := &mcp.StreamableClientTransport{Endpoint: url}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "agent"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { told <- req.Params.Progress },
	}).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if tools, err := c.ListTools(t.Context(), nil); err != nil || len(tools.Tools) != 2 {
		t.Fatalf("%v, %v", tools, err)
	}
	p := pay("k1", `{"cents":42}`)
	p.SetProgressToken("p")
	first := callTool(t, c, p)
	if o == nil && <-told != 0.5 {
		t.Error("the progress was not told")
	}
	again := callTool(t, c, pay("k1", `{"cents":42}`))
	other := callTool(t, dial(t, url, ""), pay("k1", `{"cents":42}`)) // another session
	if said(t, first) != said(t, again) || said(t, other) != said(t, again) || again.Meta[replayedName] != true || srv.ran.Load() != 1 {
		t.Errorf("first %s, again %s, from another session %s", said(t, first), said(t, again), said(t, other))
	}
	for range 2 {
		if res := callTool(t, c, pay("k2", `{"cents":42,"note":"fail"}`)); !res.IsError || text(res) != "try 2 failed" {
			t.Errorf("got %s", said(t, res))
		}
		callTool(t, c, &mcp.CallToolParams{Name: "look"})
	}
	refusedAs(t, callTool(t, c, pay("k1", `{"cents":43}`)), "mismatch", "not executed", "new key")
	refusedAs(t, callTool(t, c, pay("", `{"cents":43}`)), "key-missing", "not executed", "Call it again with _meta")
	if looked != 2 || srv.ran.Load() != 2 {
		t.Errorf("looked %d times, ran %d times", looked, srv.ran.Load())
	}
}
