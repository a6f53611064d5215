package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/demo"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/rig"
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

func TestWrongUsageExitsWith2AndSaysWhatToDo(t *testing.T) {
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
		{"demo --storm", []string{"--storm", "stet demo --help"}},
		{"demo now", []string{`"now"`}},
		{"demo --json --serve", []string{"--json", "--serve", "leave one out"}},
		{"demo --addr 127.0.0.1:0", []string{"--addr is for --serve"}},
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

func TestHelpFitsAScreenAndHidesWhatIsNotForPeople(t *testing.T) {
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

// What --serve prints is tried as it stands.
func TestServePrintsCurlLinesThatDoWhatTheySay(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		ended <- run(ctx, []string{"demo", "--serve", "--addr", "127.0.0.1:0"}, strings.NewReader(""), w, &errs)
	}()
	var answers []string
	lines := bufio.NewScanner(r)
	for len(answers) < 5 && lines.Scan() {
		if strings.HasPrefix(lines.Text(), "curl ") {
			answers = append(answers, curl(t, lines.Text()))
		}
	}
	go func() { _, _ = io.Copy(io.Discard, r) }() // ends with w
	cancel()
	select {
	case status := <-ended:
		if status != exitOK {
			t.Errorf("status %d, %s", status, errs.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	_ = w.Close()
	if len(answers) != 5 {
		t.Fatalf("%d curl lines, want 5", len(answers))
	}
	first, again := answers[0], answers[1]
	if !strings.HasPrefix(first, "201 ") || again != strings.Replace(first, "201 ", "201 replayed ", 1) {
		t.Errorf("first %q\nagain %q", first, again)
	}
	for i, want := range map[int]string{2: "422 ", 3: "400 ", 4: `200 [{"charge":1,`} {
		if !strings.HasPrefix(answers[i], want) {
			t.Errorf("line %d: %q, want %q", i+1, answers[i], want)
		}
	}
	if strings.Count(answers[4], `"charge":`) != 1 {
		t.Errorf("ledger: %s", answers[4])
	}
}

// curl does what a curl line says, as far as these go.
func curl(t *testing.T, line string) string {
	t.Helper()
	args := regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1)
	var url, method, data string
	header := http.Header{}
	method = http.MethodGet
	for i := 1; i < len(args); i++ {
		switch args[i] {
		case "-i":
		case "-H":
			i++
			name, value, _ := strings.Cut(strings.Trim(args[i], "'"), ": ")
			header.Add(name, value)
		case "-d":
			i++
			method, data = http.MethodPost, strings.Trim(args[i], "'")
		default:
			url = args[i]
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	mark := ""
	if res.Header.Get("Idempotent-Replayed") == "true" {
		mark = "replayed "
	}
	return res.Status[:4] + mark + string(body)
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
