package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// here is the platform of the tests.
const here = "linux/amd64"

// built has a release of the checkout, built once for all tests, and a later one.
var built struct {
	sync.Once
	out [2]string
	err error
}

var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "stet-packaging-"); err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(status)
}

// packages returns the folders of version 1.2.3 and of version 1.3.0.
func packages(t *testing.T) (first, second string) {
	t.Helper()
	built.Do(func() {
		ca := filepath.Join(folder, "ca.crt")
		if built.err = os.WriteFile(ca, []byte("a certificate\n"), 0o600); built.err != nil {
			return
		}
		for i, version := range []string{"1.2.3", "1.3.0"} {
			built.out[i] = filepath.Join(folder, version)
			kinds := "linux"
			if i == 0 {
				kinds = "linux,image,wheel,npm"
			}
			if built.err = (&release{out: built.out[i], version: version, ca: ca}).run(here, kinds); built.err != nil {
				return
			}
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.out[0], built.out[1]
}

// tool runs a program and returns its output. A failure ends the test.
func tool(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := start(t, dir, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func start(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("there is no %s; run: make services", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = append(os.Environ(), "PIP_DISABLE_PIP_VERSION_CHECK=1", "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// TestSecondBuildHasTheSameBytes builds everything again, in another folder.
func TestSecondBuildHasTheSameBytes(t *testing.T) {
	first, _ := packages(t)
	again := t.TempDir()
	if err := (&release{out: again, version: "1.2.3", ca: filepath.Join(folder, "ca.crt")}).run(here, "linux,image,wheel,npm"); err != nil {
		t.Fatal(err)
	}
	if differ := tool(t, folder, "diff", "--recursive", "--brief", first, again); differ != "" {
		t.Error(differ)
	}
}

// TestImageRunsAsItsUser unpacks the image, and runs its program in it.
func TestImageRunsAsItsUser(t *testing.T) {
	first, _ := packages(t)
	image := filepath.Join(first, "image")
	var index struct {
		Manifests []struct {
			Digest   string
			Platform struct{ OS, Architecture string }
		}
	}
	blob := func(digest string, into any) []byte {
		b, err := os.ReadFile(filepath.Join(image, "blobs", strings.Replace(digest, ":", "/", 1)))
		if err == nil && into != nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := os.ReadFile(filepath.Join(image, "index.json"))
	if err != nil || json.Unmarshal(b, &index) != nil || len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != "amd64" {
		t.Fatalf("%s, %v", b, err)
	}
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest, MediaType string }
	}
	blob(index.Manifests[0].Digest, &manifest)
	var config struct {
		Config struct {
			User, WorkingDir string
			Entrypoint       []string
			Labels           map[string]string
		}
	}
	blob(manifest.Config.Digest, &config)
	c := config.Config
	if c.User != "65532:65532" || c.Labels["org.opencontainers.image.version"] != "1.2.3" || len(c.Labels["org.opencontainers.image.revision"]) != 40 || len(manifest.Layers) != 1 {
		t.Errorf("%+v, %+v", c, manifest)
	}
	root := t.TempDir()
	unpack(t, blob(manifest.Layers[0].Digest, nil), root)
	if program, err := elf.Open(filepath.Join(root, c.Entrypoint[0])); err != nil || slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Errorf("the program is not static (%v)", err)
	}
	cmd := start(t, "/", "/bin/true")
	cmd.Path, cmd.Args, cmd.Dir = c.Entrypoint[0], []string{"stet", "--version"}, c.WorkingDir
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: imageUser, Gid: imageUser}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "stet version v1.2.3, commit ") {
		t.Errorf("%v: %s (run the test as root)", err, out)
	}
}

func unpack(t *testing.T, layer []byte, root string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil { //nolint:gosec // another user runs the program in it
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, h.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, content, 0o600)
		}
		if err != nil || os.Chown(path, h.Uid, h.Gid) != nil || os.Chmod(path, h.FileInfo().Mode()) != nil {
			t.Fatalf("%s: %v (run the test as root)", h.Name, err)
		}
	}
}

// TestPipInstallsTheProgram: pip install 'stet[proxy]', from local files.
func TestPipInstallsTheProgram(t *testing.T) {
	first, _ := packages(t)
	tree, env := t.TempDir(), t.TempDir()
	tool(t, "..", "cp", "-a", "clients/python", tree) // a build writes beside its sources
	tool(t, env, "python3", "-m", "venv", ".")
	pip := filepath.Join(env, "bin", "pip")
	tool(t, tree, pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tree, "./python")
	tool(t, tree, pip, "install", "--quiet", "--no-index", "--find-links", tree, "--find-links", first, "--pre", "stet[proxy]")
	if out := tool(t, tree, filepath.Join(env, "bin", "stet"), "--version"); !strings.HasPrefix(out, "stet version v1.2.3,") {
		t.Error(out)
	}
	tool(t, tree, pip, "uninstall", "--quiet", "--yes", "stet-proxy")
	if _, err := os.Stat(filepath.Join(env, "bin", "stet")); !os.IsNotExist(err) {
		t.Errorf("the program is there after pip uninstall: %v", err)
	}
	// pip takes the source archive if no wheel is for its platform.
	out, err := start(t, tree, pip, "install", "--no-index", "--no-binary", "stet-proxy", "--find-links", first, "stet-proxy").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "stet-proxy has no program for Linux on x86_64") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNpmInstallsTheProgram: npx stet, from local files.
func TestNpmInstallsTheProgram(t *testing.T) {
	first, _ := packages(t)
	dir := t.TempDir()
	main, program := filepath.Join(first, "stet-go-stet-1.2.3.tgz"), filepath.Join(first, "stet-go-stet-linux-x64-1.2.3.tgz")
	npm := []string{"install", "--offline", "--no-audit", "--no-fund", "--cache", filepath.Join(dir, "cache")}
	tool(t, dir, "npm", append(npm, main, program)...)
	if out := tool(t, dir, "npx", "--no-install", "stet", "--version"); !strings.HasPrefix(out, "stet version v1.2.3,") {
		t.Error(out)
	}
	if out := tool(t, dir, "npx", "--no-install", "stet", "migrate", "sql"); !strings.Contains(out, "CREATE TABLE") {
		t.Errorf("migrate sql printed %s", out)
	}
	// The program's exit status is that of npx.
	if out, err := start(t, dir, "npx", "--no-install", "stet", "proxy").CombinedOutput(); err == nil || !strings.Contains(string(out), "where is the service?") {
		t.Errorf("%v: %s", err, out)
	}
	if err := os.RemoveAll(filepath.Join(dir, "node_modules", "@stet-go", "stet-linux-x64")); err != nil { // as npm install --omit=optional
		t.Fatal(err)
	}
	out, err := start(t, dir, "npx", "--no-install", "stet", "proxy").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "there is no program of stet for linux on x64 here") {
		t.Errorf("%v: %s", err, out)
	}
}
