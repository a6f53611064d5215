package main

import (
	"debug/elf"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestVersionFlagAndCommandPrintTheSameLine(t *testing.T) {
	_, byCommand, _ := command(t, "version")
	status, byFlag, errs := command(t, "--version")
	if status != exitOK || errs != "" || byFlag != byCommand || !strings.HasPrefix(byFlag, "stet version ") || strings.Count(byFlag, "\n") != 1 {
		t.Errorf("status %d; --version prints %q, version %q; %s", status, byFlag, byCommand, errs)
	}
}

func TestVersionAsJSON(t *testing.T) {
	status, out, errs := command(t, "version", "-o", "json")
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); status != exitOK || err != nil {
		t.Fatalf("status %d, %v: %s%s", status, err, out, errs)
	}
	if got["version"] == "" || got["go"] != runtime.Version() || got["platform"] != runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("%s", out)
	}
	if status, _, errs := command(t, "version", "-o", "yaml"); status != exitUsage || !strings.Contains(errs, "table or json") {
		t.Errorf("-o yaml: status %d, %s", status, errs)
	}
}

// TestBuildInfoOverridesTheLinkersVariables also checks that the variables are used where Go
// recorded nothing.
func TestBuildInfoOverridesTheLinkersVariables(t *testing.T) {
	release, commit, date = "v9.9.9", "from-linker", "2026-01-02T03:04:05Z"
	t.Cleanup(func() { release, commit, date = "", "", "" })
	recorded := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-28T20:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	end := ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{recorded, "v1.2.3, commit abc, modified, 2026-11-28T20:00:00Z"},
		{&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "v9.9.9, commit from-linker, 2026-01-02T03:04:05Z"},
		{nil, "v9.9.9, commit from-linker, 2026-01-02T03:04:05Z"},
	} {
		if got := builtFrom(c.info, c.info != nil).String(); got != c.want+end {
			t.Errorf("got %q, want %q", got, c.want+end)
		}
	}
	release, commit, date = "", "", ""
	if got := builtFrom(nil, false).String(); got != "(devel)"+end {
		t.Errorf("got %q, want %q", got, "(devel)"+end)
	}
}

// TestProgramIsBelow40Megabytes checks the parts of the program that are loaded. A release has no others.
func TestProgramIsBelow40Megabytes(t *testing.T) {
	program, err := elf.Open(rig.Stet(t))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	var size uint64
	for _, p := range program.Progs {
		if p.Type == elf.PT_LOAD {
			size += p.Filesz
		}
	}
	if size < 1e6 || size > 40e6 {
		t.Errorf("the program has %d bytes, limit 40,000,000. If \"go build -ldflags=-dumpdep ./cmd/stet\" prints ReflectMethod, a package uses reflect.Value.MethodByName (text/template does), and the linker retains every exported method", size)
	}
}
