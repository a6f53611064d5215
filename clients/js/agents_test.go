package js

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Plain tools, and a server of the official SDK. The programs of docs/agents.md run as they are there.
func TestToolsOfAgentsRunOnce(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	folder := filepath.Join("test", "agents")
	compile(t, dir, filepath.Join(folder, "agent.ts"), filepath.Join(folder, "server.ts"), filepath.Join(folder, "types.ts"))
	vectors, err := filepath.Abs(filepath.Join("..", "..", "docs", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, url := ledger(t)
	env := []string{"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url, "STET_VECTORS=" + vectors}
	nodeTests(t, dir, env, 8, filepath.Join(folder, "agents.test.js"))
}

// The Python programs of the page run in the tests of clients/python.
func TestProgramsOfThePageOfAgentsAreTheTestedOnes(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "agents.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages := filepath.Join("..", "python", "tests", "newest", "pages")
	for file, language := range map[string]string{
		filepath.Join("test", "agents", "agent.ts"): "ts", filepath.Join("test", "agents", "server.ts"): "ts",
		filepath.Join(pages, "agent.py"): "python", filepath.Join(pages, "agent_server.py"): "python",
	} {
		program, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(page, slices.Concat([]byte("```"+language+"\n"), program, []byte("```\n"))) {
			t.Errorf("docs/agents.md does not have %s", file)
		}
	}
}
