package stetmcp_test

import (
	"context"
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet/contrib/stetmcp"
)

// program is the whole program of docs/adapters/mcp.md.
func program(t *testing.T) string {
	page := string(must[[]byte](t)(os.ReadFile("../../docs/adapters/mcp.md")))
	_, rest, _ := strings.Cut(page, "```go\n")
	code, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("the page has no program")
	}
	return code
}

func TestThePackageCommentHasTheProgramOfThePage(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	indented := ""
	for line := range strings.Lines(program(t)) {
		if line != "\n" {
			line = "\t" + line
		}
		indented += line
	}
	if !strings.Contains(f.Doc.Text(), indented) {
		t.Error("the package comment has another program than docs/adapters/mcp.md")
	}
}

// TestTheProgramOfThePageOverAProcess builds it and talks to it over standard input and
// output; a second process finds what the first, which was killed, has left.
func TestTheProgramOfThePageOverAProcess(t *testing.T) {
	code, err := os.MkdirTemp(".", "page_")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(code) })
	if err := os.WriteFile(filepath.Join(code, "main.go"), []byte(program(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "shop")
	if out, err := exec.Command("go", "build", "-o", bin, "./"+code).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var results []string
	var logged strings.Builder
	for range 2 {
		cmd := exec.Command(bin)
		cmd.Dir, cmd.Stderr = dir, &logged
		c, err := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "buy", Arguments: json.RawMessage(`{"item":"ink","count":2}`),
			Meta: mcp.Meta{stetmcp.DefaultKeyName: "k1"}})
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, said(t, res))
		_ = cmd.Process.Kill()
		_ = c.Close()
	}
	if results[0] != results[1] || !strings.Contains(results[0], "bought") || strings.Count(logged.String(), "bought 2 of ink") != 1 {
		t.Errorf("results %q, log %q", results, logged.String())
	}
}
