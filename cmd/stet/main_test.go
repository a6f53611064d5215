package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stet-go/stet/internal/demo"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/rig"
)

// The test binary is the command too: this variable makes it so.
const commandEnv = "STET_TEST_COMMAND"

// A command that passes the point of internal/fault in this variable dies of it.
const dieEnv = "STET_TEST_DIE"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		if point := fault.Point(os.Getenv(dieEnv)); point != "" {
			fault.Set(func(p fault.Point) {
				if p == point {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
			})
		}
		main()
	}
	// Most of the tests that run side by side wait for other processes.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(rig.Main(m).Run())
}

// command runs the command line in this process.
func command(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

func TestWrongUsageExitsWith2AndExplains(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"demo --payments 0", []string{"--payments is 0", "must be 1 to 5000", "stet demo --help"}},
		{"demo --payments 5001", []string{"--payments is 5001", "must be 1 to 5000"}},
		{"demo --payments many", []string{`"many"`, "--payments", "stet demo --help"}},
		{"demo --clients 21", []string{"--clients is 21", "must be 1 to 20"}},
		{"demo --kills -1", []string{"--kills is -1", "must be 0 to 20"}},
		{"demo --seed -1", []string{"--seed"}},
		{"demo --speed", []string{"--speed", "stet demo --help"}},
		{"demo now", []string{`"now"`}},
		{"demmo", []string{`"demmo"`, "stet --help"}},
		{"version 1", []string{`"1"`}},
	} {
		status, out, errs := command(t, strings.Fields(tc.args)...)
		if status != exitUsage || out != "" {
			t.Errorf("stet %s: status %d, stdout %q", tc.args, status, out)
		}
		for _, want := range tc.want {
			if !strings.Contains(errs, want) {
				t.Errorf("stet %s: %q is missing from %q", tc.args, want, errs)
			}
		}
	}
}

func TestHelpFitsAScreenAndHidesInternalCommands(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"demo", "--help"}, {"migrate"}, {"migrate", "up", "--help"},
		{"migrate", "down", "--help"}, {"migrate", "status", "--help"}, {"version", "--help"}} {
		status, out, errs := command(t, args...)
		if n := strings.Count(out, "\n"); status != exitOK || errs != "" || n < 3 || n > 24 {
			t.Errorf("stet %q: status %d, %d lines, stderr %q", args, status, n, errs)
		}
		if strings.Contains(out, demoService) {
			t.Errorf("stet %q shows %s", args, demoService)
		}
	}
}

func TestVersionNamesTheToolchain(t *testing.T) {
	if status, out, _ := command(t, "version"); status != exitOK || !regexp.MustCompile(`^stet .*, go1\..*\n$`).MatchString(out) {
		t.Errorf("status %d, %q", status, out)
	}
}

func TestDemoJSONIsOneObjectOnStdout(t *testing.T) {
	t.Setenv(commandEnv, "1")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "demo", "--json", "--payments", "20", "--clients", "5", "--kills", "1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	d := json.NewDecoder(&out)
	var got struct{ Without, With map[string]any }
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("more than one object: %v", err)
	}
	for side, m := range map[string]map[string]any{"without": got.Without, "with": got.With} {
		for _, name := range []string{"requests", "payments", "charged_once", "charged_twice", "lost", "replayed", "conflicts", "unknown"} {
			if v, ok := m[name].(float64); !ok || v != float64(int(v)) {
				t.Errorf("%s.%s is %v, want an integer", side, name, m[name])
			}
		}
	}
	if got.With["charged_once"] != 20.0 || got.With["charged_twice"] != 0.0 || got.With["lost"] != 0.0 || got.Without["charged_twice"] == 0.0 {
		t.Errorf("without %v\nwith %v", got.Without, got.With)
	}
	if !strings.Contains(errs.String(), "SIGKILL") {
		t.Errorf("no progress on stderr: %q", errs.String())
	}
}

func TestBrokenPromiseIsAnErrorAfterTheReport(t *testing.T) {
	report := demo.Report{Seed: 7, Violations: []string{"payments charged more than once: 1"}}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		err := printReport(&out, report, asJSON)
		if err == nil || !strings.Contains(err.Error(), "--seed 7") || !strings.Contains(out.String(), "more than once: 1") {
			t.Errorf("json %v: %v after %q", asJSON, err, out.String())
		}
		if err := printReport(&out, demo.Report{}, asJSON); err != nil {
			t.Errorf("json %v: a kept promise is an error: %v", asJSON, err)
		}
	}
}

// It would be a file by that name, and the name, with the password, in the log.
func TestStoreAsKeywordsIsRefusedWithoutItsPassword(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"proxy", "--upstream", "http://127.0.0.1:1", "--admin-listen", "off"}, {"keys", "ls"}} {
		status, stdout, stderr := command(t, append(args, "--store", "host=127.0.0.1 user=app password=hunter2")...)
		if status != exitUsage || !strings.Contains(stderr, "postgres://") || strings.Contains(stderr+stdout, "hunter2") {
			t.Errorf("%v: %d %s %s", args, status, stdout, stderr)
		}
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v; want len(left) <= 0, no error", left, err)
	}
}
