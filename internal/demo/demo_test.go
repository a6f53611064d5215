package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
)

// The test binary is the service, too, and its parent: this variable says which.
const roleEnv = "STET_DEMO_TEST_ROLE"

func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "unprotected": // although -protected says otherwise
		args = slices.DeleteFunc(args, func(a string) bool { return a == "-protected" })
	case "parent": // starts a service, prints its address and waits to be killed
		_ = os.Setenv(roleEnv, "service")
		p, err := child.Start(context.Background(), child.Command{Path: os.Args[0], Args: args})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Addr)
		select {}
	}
	if err := ServiceMain(context.Background(), args, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func as(t *testing.T, role string) []string {
	t.Helper()
	t.Setenv(roleEnv, role)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	return []string{os.Args[0]}
}

func TestPaymentsAreChargedOnceWithStetAndTwiceWithout(t *testing.T) {
	const payments, kills = 40, 2
	var progress strings.Builder
	rep, err := Run(t.Context(), Config{Payments: payments, Clients: 5, Kills: kills, Service: as(t, "service"), Progress: &progress})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d\nwithout %+v\nwith    %+v", rep.Seed, rep.Without, rep.With)
	if len(rep.Violations) > 0 || rep.With.Once != payments || rep.With.Replayed == 0 {
		t.Errorf("with stet: %+v, violations %q", rep.With, rep.Violations)
	}
	if rep.Without.Twice == 0 || rep.Without.Replayed+rep.Without.Conflicts != 0 {
		t.Errorf("without stet: %+v", rep.Without)
	}
	for _, r := range []Result{rep.With, rep.Without} {
		if r.Payments != payments || r.Requests < payments*5 || r.Kills != kills || r.InFlightAtKills < kills {
			t.Errorf("%+v; want %d payments, 5 requests or more for each, and %d kills with requests in flight", r, payments, kills)
		}
	}
	if n := strings.Count(progress.String(), "SIGKILL"); n != 2*kills {
		t.Errorf("progress has %d kills, want %d:\n%s", n, 2*kills, progress.String())
	}
}

func TestUnprotectedServiceIsAViolation(t *testing.T) {
	rep, err := Run(t.Context(), Config{Payments: 10, Clients: 5, Kills: 1, Service: as(t, "unprotected")})
	if err != nil {
		t.Fatal(err)
	}
	if rep.With.Twice == 0 || rep.With.Differing == 0 || len(rep.Violations) < 2 {
		t.Errorf("%+v, violations %q", rep.With, rep.Violations)
	}
}

func TestServiceWithoutResponsesIsAViolation(t *testing.T) {
	l := newLoad(Config{Payments: 3, Clients: 2, Service: as(t, "service")}, filepath.Join(t.TempDir(), "a"), "silent", "-protected", "-lag", "500s")
	l.limit = time.Second
	r, err := l.run(t.Context())
	if err != nil || r.Lost != 3 || len(violations(r)) == 0 {
		t.Errorf("%+v, %v, violations %q", r, err, violations(r))
	}
}

func TestRunLeavesNothingBehind(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	stop := writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), "SIGKILL") {
			cancel(interrupted)
		}
		return len(p), nil
	})
	_, err := Run(ctx, Config{Payments: 40, Clients: 5, Kills: 3, Service: as(t, "service"), Progress: stop})
	if left, listErr := os.ReadDir(tmp); !errors.Is(err, interrupted) || listErr != nil || len(left) > 0 {
		t.Errorf("Run: %v; left behind: %v, %v", err, left, listErr)
	}
}

func TestKillAndRestart_EndsWithItsContext(t *testing.T) {
	l := newLoad(Config{Payments: 1, Clients: 1, Kills: 2, Service: as(t, "service")}, t.TempDir(), "ended")
	t.Cleanup(l.service.Kill)
	if err := l.start(t.Context(), "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	l.inFlight.Store(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.killAndRestart(ctx); !errors.Is(err, context.Canceled) || l.killed.Kills != 1 {
		t.Errorf("%v after %d kills; want context.Canceled after one", err, l.killed.Kills)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// The charge is committed, its response is not sent, and the process dies.
func TestRetryAfterAKillBetweenCommitAndResponse(t *testing.T) {
	for name, flags := range map[string][]string{"with stet": {"-protected"}, "without stet": nil} {
		t.Run(name, func(t *testing.T) {
			l := newLoad(Config{Payments: 1, Clients: 1, Service: as(t, "service")}, t.TempDir(), name, append(flags, "-lag", "500s")...)
			t.Cleanup(l.service.Kill)
			if err := l.start(t.Context(), "127.0.0.1:0"); err != nil {
				t.Fatal(err)
			}
			l.url = "http://" + l.service.Process().Addr + "/payments"
			cut := make(chan bool, 1)
			go func() { cut <- l.send(t.Context(), l.orders[0], time.Minute) }()
			waitFor(t, func() bool { return charged(t, l.dir) == 1 })
			l.service.Kill()
			if <-cut {
				t.Fatal("the first request got a response")
			}
			l.flags = append(l.flags, "-lag", "0s")
			if err := l.start(t.Context(), l.service.Process().Addr); err != nil {
				t.Fatal(err)
			}
			if !l.send(t.Context(), l.orders[0], time.Minute) {
				t.Fatal("the retry got no response")
			}
			l.service.Stop(crash.StopGrace)
			ledger, err := readLedger(t.Context(), l.dir)
			r := compare(l.orders, ledger)
			if err != nil || r.Lost != 0 || (r.Once == 1) != (flags != nil) || l.replayed.Load() != int64(len(flags)) {
				t.Errorf("%+v, replayed %d, %v", r, l.replayed.Load(), err)
			}
		})
	}
}

func TestServiceDiesWithItsParent(t *testing.T) {
	cmd := exec.Command(as(t, "parent")[0], "-dir", t.TempDir())
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	addr := strings.TrimSpace(line)
	if err != nil || !strings.HasPrefix(addr, "127.0.0.1:") {
		t.Fatalf("the parent printed %q, %v", line, err)
	}
	waitFor(t, func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

func TestCompareFindsViolations(t *testing.T) {
	p := payment{"order-1", 4200}
	first, second := charge{1, p, "A"}, charge{2, p, "B"}
	body := func(c charge) string { b, _ := json.Marshal(c); return string(b) + "\n" }
	for name, c := range map[string]struct {
		responses        []string
		refused, unknown bool
		ledger           []charge
		want             Result
		violation        string
	}{
		"charged once":              {[]string{body(first)}, false, false, []charge{first}, Result{Once: 1}, ""},
		"charged twice":             {[]string{body(first), body(second)}, false, false, []charge{first, second}, Result{Twice: 1, Overcharged: 4200, Differing: 1}, "more than once: 1"},
		"not in the ledger":         {[]string{body(first)}, false, false, nil, Result{Lost: 1}, "lost"},
		"another receipt":           {[]string{body(second)}, false, false, []charge{first}, Result{Once: 1, Lost: 1}, "lost"},
		"unreadable":                {[]string{"OK"}, false, false, []charge{first}, Result{Once: 1, Lost: 1}, "lost"},
		"differs by a byte":         {[]string{body(first), body(first) + " "}, false, false, []charge{first}, Result{Once: 1, Differing: 1}, "differ: 1"},
		"no response":               {nil, false, false, nil, Result{Lost: 1}, "lost"},
		"no response, charged":      {nil, false, false, []charge{first}, Result{Once: 1, Lost: 1}, "lost"},
		"unknown":                   {nil, false, true, []charge{first}, Result{Once: 1, Unknown: 1}, "unknown"},
		"unknown to one client":     {[]string{body(first)}, false, true, []charge{first}, Result{Once: 1}, ""},
		"refused":                   {nil, true, false, nil, Result{Lost: 1}, "lost"},
		"charged by another amount": {[]string{body(first)}, false, false, []charge{{1, payment{"order-1", 9900}, "A"}}, Result{Lost: 1}, "lost"},
	} {
		o := &order{payment: p, responses: map[string]bool{}, refused: c.refused, unknown: c.unknown}
		for _, r := range c.responses {
			o.responses[r] = true
		}
		c.want.Payments = 1
		got := compare([]*order{o}, c.ledger)
		broken := strings.Join(violations(got), "; ")
		if got != c.want || (broken == "") != (c.violation == "") || !strings.Contains(broken, c.violation) {
			t.Errorf("%s: %+v, violations %q; want %+v, %q", name, got, broken, c.want, c.violation)
		}
	}
}

// waitFor polls cond, which another process makes true.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !cond() {
		if crash.Pause(ctx, 5*time.Millisecond) != nil {
			t.Fatal("it did not happen within a minute")
		}
	}
}

// charged counts the charges in the ledger of a service that runs.
func charged(t *testing.T, dir string) int {
	t.Helper()
	ledger, err := readLedger(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(ledger)
}
