package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// tool runs a program and returns its output. A failure ends the test.
func tool(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PIP_DISABLE_PIP_VERSION_CHECK=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v:\n%s", cmd, err, out)
	}
	return string(out)
}

// install makes an environment of the Python in PATH in a folder, with packages of PyPI. It returns its folder of programs.
func install(t *testing.T, dir string, packages ...string) string {
	t.Helper()
	tool(t, dir, "python3", "-m", "venv", ".")
	bin := filepath.Join(dir, "bin")
	tool(t, dir, filepath.Join(bin, "pip"), append([]string{"install", "--quiet"}, packages...)...)
	return bin
}

// TestWheelWorksWithoutGo builds the package, installs it from the file, and migrates a database. The wheel has the files of the Go package.
func TestWheelWorksWithoutGo(t *testing.T) {
	t.Parallel()        // pip mostly waits
	tree := t.TempDir() // a build writes beside its sources
	source, dist := filepath.Join(tree, "python"), filepath.Join(tree, "dist")
	tool(t, "..", "cp", "-a", "python", source)
	bin := install(t, t.TempDir(), "build", "setuptools>=77", "twine", "mypy", "django-stubs", "aiokafka", "asyncpg", "celery", "fastapi", "flask", "psycopg[binary]", "sqlalchemy")
	tool(t, source, filepath.Join(bin, "python"), "-m", "build", "--no-isolation", "--outdir", dist) // setuptools is installed
	files, err := filepath.Glob(filepath.Join(dist, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("the build has made %v, %v; want a wheel and a source archive", files, err)
	}
	tool(t, dist, filepath.Join(bin, "twine"), append([]string{"check", "--strict"}, files...)...)
	wheel, err := filepath.Glob(filepath.Join(dist, "*.whl"))
	if err != nil || len(wheel) != 1 {
		t.Fatalf("%v, %v; want one wheel", wheel, err)
	}
	tool(t, dist, filepath.Join(bin, "pip"), "install", "--quiet", wheel[0])
	sql := tool(t, dist, filepath.Join(bin, "python"), "-m", "stet", "migrate", "sql")
	if ours := inGoMigrator(t, "up", "--show-sql"); sql != ours {
		t.Error("the installed package has other SQL than Go")
	}
	url := rig.Postgres(t).Database(t)
	tool(t, dist, filepath.Join(bin, "python"), "-m", "stet", "migrate", "up", "--dsn", url)
	if status := inGoMigrator(t, "status", "--store", url); strings.Contains(status, "pending") {
		t.Errorf("Go reports:\n%s", status)
	}
	mypy(t, bin, dist)
	for file, text := range map[string]string{"README.md": tool(t, source, "cat", "README.md"), "long description": tool(t, dist, filepath.Join(bin, "python"), "-c", "import importlib.metadata as m; print(m.metadata('stet').get_payload())")} {
		if relative := regexp.MustCompile(`\]\((?:\.|docs/|clients/)[^)]*\)`).FindString(text); relative != "" || len(text) < 5000 {
			t.Errorf("%s: the link %q leads nowhere on the page of an index (%d bytes)", file, relative, len(text))
		}
	}
}

// mypy checks the installed package, and a program that uses it: py.typed must be in the wheel.
func mypy(t *testing.T, bin, dir string) {
	t.Helper()
	program := "import stet\nreveal_type(stet.migrate)\n"
	if err := os.WriteFile(filepath.Join(dir, "program.py"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := tool(t, dir, filepath.Join(bin, "mypy"), "--strict", "program.py"); !strings.Contains(said, "-> int") {
		t.Errorf("a program does not see the types of the package: %s", said)
	}
	tool(t, dir, filepath.Join(bin, "mypy"), "--strict", "-p", "stet")
}
