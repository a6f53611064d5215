package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	module  = "github.com/stet-go/stet"
	version = "v0.0.1-test"
)

// heavy are modules that a program must not have in its graph unless it uses them.
var heavy = []string{
	"github.com/gin-gonic/gin", "github.com/labstack/echo/v4", "github.com/labstack/echo/v5", "github.com/gofiber/fiber/v3",
	"connectrpc.com/connect", "github.com/ThreeDotsLabs/watermill", "github.com/aws/aws-lambda-go",
	"github.com/modelcontextprotocol/go-sdk",
}

// run runs a program in dir.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// released is a repository with the files of this one, as they are now, of which tag.sh has
// made a release.
func released(t *testing.T) (repository string) {
	t.Helper()
	root := strings.TrimSpace(run(t, ".", nil, "git", "rev-parse", "--show-toplevel"))
	repository = filepath.Join(t.TempDir(), "stet")
	for path := range strings.SplitSeq(strings.TrimRight(run(t, root, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root, path))
		if os.IsNotExist(err) {
			continue // removed, and not committed
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(repository, path)), 0o755)
		}
		info, statErr := os.Stat(filepath.Join(root, path))
		if err != nil || statErr != nil {
			t.Fatal(err, statErr)
		}
		if err := os.WriteFile(filepath.Join(repository, path), b, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	author := []string{"GIT_AUTHOR_NAME=stet", "GIT_AUTHOR_EMAIL=stet@example.com", "GIT_COMMITTER_NAME=stet", "GIT_COMMITTER_EMAIL=stet@example.com", "GIT_CONFIG_GLOBAL=" + os.DevNull}
	run(t, repository, author, "git", "init", "--quiet")
	run(t, repository, author, "git", "add", "--all")
	run(t, repository, author, "git", "commit", "--quiet", "--message", "all")
	run(t, repository, author, filepath.Join("internal", "release", "tag.sh"), version)
	return repository
}

// consumer is the environment of a program that gets our modules from repository, as it
// would from their server, and those of others from what this machine has or can get.
func consumer(t *testing.T, repository string) []string {
	t.Helper()
	settings := strings.Split(strings.TrimSpace(run(t, ".", nil, "go", "env", "GOMODCACHE", "GOPROXY")), "\n")
	return []string{
		"GOWORK=off", "GOFLAGS=-modcacherw -mod=mod", "GOSUMDB=off", "GOPRIVATE=" + module, "GOTOOLCHAIN=local",
		"GOMODCACHE=" + t.TempDir(), "GOPROXY=file://" + filepath.Join(settings[0], "cache", "download") + "," + settings[1],
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=url.file://" + repository + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + module,
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*", "GIT_ALLOW_PROTOCOL=file",
	}
}

// program is a module that imports these packages.
func program(t *testing.T, env []string, imports ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	var text strings.Builder
	text.WriteString("package main\n\nimport (\n")
	for _, path := range imports {
		fmt.Fprintf(&text, "\t_ %q\n", path)
	}
	text.WriteString(")\n\nfunc main() {}\n")
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, env, "go", "mod", "init", "example.com/program")
	for _, path := range imports {
		run(t, dir, env, "go", "get", path+"@"+version)
	}
	run(t, dir, env, "go", "mod", "tidy")
	return dir
}

// requirements are the modules in a go.mod, without ours.
func requirements(t *testing.T, dir string) (paths []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\s*([a-z0-9.-]+\.[a-z]+/\S+) v\S+`).FindAllStringSubmatch(string(b), -1) {
		if m[1] != module {
			paths = append(paths, m[1])
		}
	}
	slices.Sort(paths)
	return paths
}

// TestProgramsImportOnlyTheModulesTheyUse: a program requires the modules of its store, of
// its adapter, and of structured fields, and has no framework in its graph that it does not use.
func TestProgramsImportOnlyTheModulesTheyUse(t *testing.T) {
	repository := released(t)
	env := consumer(t, repository)
	for store, want := range map[string]string{
		"store/memory":   "github.com/dunglas/httpsfv",
		"store/postgres": "github.com/dunglas/httpsfv github.com/jackc/pgpassfile github.com/jackc/pgservicefile github.com/jackc/pgx/v5 github.com/jackc/puddle/v2 golang.org/x/sync golang.org/x/text",
	} {
		t.Run(store, func(t *testing.T) {
			dir := program(t, env, module, module+"/stethttp", module+"/"+store)
			if got := strings.Join(requirements(t, dir), " "); got != want {
				t.Errorf("the program requires %s; want %s", got, want)
			}
			lacks(t, env, dir)
			run(t, dir, env, "go", "build", "-o", os.DevNull, ".")
		})
	}
	for adapter, own := range map[string][]string{
		"stetgin": {"github.com/gin-gonic/gin"}, "stetecho": {"github.com/labstack/echo/v5"}, "stetecho4": {"github.com/labstack/echo/v4"},
		"stetfiber": {"github.com/gofiber/fiber/v3"}, "stetgrpc": {}, "stetconnect": {"connectrpc.com/connect"},
		"stetwatermill": {"github.com/ThreeDotsLabs/watermill"}, "stetlambda": {"github.com/aws/aws-lambda-go"},
		"stetmcp": {"github.com/modelcontextprotocol/go-sdk"},
	} {
		t.Run(adapter, func(t *testing.T) {
			dir := program(t, env, module+"/contrib/"+adapter)
			lacks(t, env, dir, append(own, module+"/contrib/"+adapter)...)
			run(t, dir, env, "go", "list", "-deps", ".")
		})
	}
}

// lacks wants a program to have no framework in its graph, and none of our modules, other than these.
func lacks(t *testing.T, env []string, dir string, except ...string) {
	t.Helper()
	for line := range strings.Lines(run(t, dir, env, "go", "list", "-m", "all")) {
		path, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if (slices.Contains(heavy, path) || strings.HasPrefix(path, module+"/")) && !slices.Contains(except, path) {
			t.Errorf("the graph of the program has %s", path)
		}
	}
}

// TestTagsAreOfAllModulesThatOthersImport: of each, and of none that they do not.
func TestTagsAreOfAllModulesThatOthersImport(t *testing.T) {
	repository := released(t)
	var want []string
	mods, err := filepath.Glob(filepath.Join(repository, "contrib", "*", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, mod := range mods {
		folder := "contrib/" + filepath.Base(filepath.Dir(mod))
		want = append(want, folder+"/"+version)
		if b, err := os.ReadFile(mod); err != nil || !strings.Contains(string(b), module+" "+version+"\n") {
			t.Errorf("%s does not require %s of the main module: %s (%v)", folder, version, b, err)
		}
	}
	want = append(want, version)
	if got := strings.Fields(run(t, repository, nil, "git", "tag")); len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("the tags are %q, want %q", got, want)
	}
	// A release that is there already is left unchanged.
	cmd := exec.CommandContext(t.Context(), filepath.Join("internal", "release", "tag.sh"), version)
	cmd.Dir = repository
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "is there already") {
		t.Errorf("tagged again: %v, %s", err, out)
	}
}
