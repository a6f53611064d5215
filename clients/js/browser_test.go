package js

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// needChromium finds the browser.
func needChromium(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("there is no chromium on this machine; run: make services (package chromium)")
	}
	return path
}

// A form is submitted, the network is cut, the page is reloaded or killed, the form is
// submitted again, also in two tabs: behind stet proxy there is one charge.
func TestFormInABrowserChargesOnce(t *testing.T) {
	t.Parallel() // Node and npm mostly wait
	chromium := needChromium(t)
	dir := newest.dir(t)
	example := filepath.Join(dir, "example")
	if err := os.CopyFS(example, os.DirFS(filepath.Join("..", "..", "examples", "browser"))); err != nil {
		t.Fatal(err)
	}
	env := []string{"STET_PROGRAM=" + rig.Stet(t), "STET_CHROMIUM=" + chromium, "STET_EXAMPLE=" + example, "STET_ACCEPTING=" + accepting(t)}
	nodeTests(t, dir, env, 45, filepath.Join("test", "browser", "*.test.js"))
}

func TestTypesAreThoseOfTheirUse(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	check := func(more ...string) {
		options := []string{"--noEmit", "--strict", "--target", "es2022", "--module", "nodenext"}
		rig.Run(t, dir, nil, filepath.Join(dir, "node_modules", ".bin", "tsc"), append(options, more...)...)
	}
	check("--lib", "es2022,dom,dom.iterable", "--types", "", filepath.Join("test", "types.ts"))
	check("--types", "node", filepath.Join("test", "services.ts"))
}

func TestTypesOfAdaptersAreThoseOfTheirUse(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	compile(t, dir, "--noEmit", filepath.Join("test", "adapters.ts"))
}

// compile runs tsc without the types of libraries, which other libraries may not fit.
func compile(t *testing.T, dir string, more ...string) {
	t.Helper()
	options := []string{"--skipLibCheck", "--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--experimentalDecorators", "--emitDecoratorMetadata"}
	rig.Run(t, dir, nil, filepath.Join(dir, "node_modules", ".bin", "tsc"), append(options, more...)...)
}

// nodeTests runs the tests of Node in the files that pattern names, except those of without. want is how many there are at least.
func nodeTests(t *testing.T, dir string, env []string, want int, pattern string, without ...string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	files = slices.DeleteFunc(files, func(file string) bool { return slices.Contains(without, filepath.Base(file)) })
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of tests, %v", len(files), err)
	}
	out := rig.Run(t, dir, env, "node", append([]string{"--test", "--test-reporter=spec"}, files...)...)
	m := regexp.MustCompile(`(?m)^. pass (\d+)$`).FindStringSubmatch(out)
	if m == nil || !strings.Contains(out, " skipped 0") || !strings.Contains(out, " todo 0") {
		t.Fatalf("the tests of Node did not all run:\n%s", out)
	}
	if n, _ := strconv.Atoi(m[1]); n < want {
		t.Errorf("%d tests of Node have passed; want %d at least:\n%s", n, want, out)
	}
}
