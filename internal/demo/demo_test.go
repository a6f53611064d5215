package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/crash"
)

// The test binary is the service too, and the parent that is killed: this
// variable says which.
const roleEnv = "STET_DEMO_TEST_ROLE"

func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "service":
	case "liar": // says that it is protected and is not
		args = slices.DeleteFunc(args, func(a string) bool { return a == "-protected" })
	case "stuck": // charges, and never answers
		args = append(args, "-lag", holdAll)
	case "parent":
		parent(args)
	}
	if err := ServiceMain(context.Background(), args, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// parent starts a service, says where it listens and hangs.
func parent(args []string) {
	_ = os.Setenv(roleEnv, "service")
	s := &server{command: []string{os.Args[0]}, flags: args}
	if err := s.start(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.addr)
	select {}
}

// as makes the processes that the test starts play a role.
func as(t *testing.T, role string) []string {
	t.Helper()
	t.Setenv(roleEnv, role)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	return []string{os.Args[0]}
}

func TestStormChargesOnceWithStetAndTwiceWithout(t *testing.T) {
	const payments, kills = 40, 2
	var progress strings.Builder
	rep, err := Run(t.Context(), Config{Payments: payments, Attempts: 5, Kills: kills, Service: as(t, "service"), Progress: &progress})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d, %.1f s\nwithout %+v\nwith    %+v", rep.Seed, rep.Seconds, rep.Without, rep.With)
	if len(rep.Violations) > 0 {
		t.Errorf("violations: %q", rep.Violations)
	}
	with, without := rep.With, rep.Without
	if with.ExecutedOnce != payments || with.ExecutedTwice != 0 || with.Lost != 0 || with.Unknown != 0 || with.Charges != payments {
		t.Errorf("with stet: %+v", with)
	}
	if without.ExecutedTwice == 0 {
		t.Errorf("the storm did no harm without stet: %+v", without)
	}
	for name, r := range map[string]Result{"with": with, "without": without} {
		if r.Operations != payments || r.Attempts < payments*5 {
			t.Errorf("%s stet: %d attempts at %d payments; want at least 5 at each of %d", name, r.Attempts, r.Operations, payments)
		}
		if r.Kills != kills || r.InFlightAtKills < kills {
			t.Errorf("%s stet: %d kills with %d requests in flight; want %d, each with one or more", name, r.Kills, r.InFlightAtKills, kills)
		}
	}
	if with.Replayed == 0 || without.Replayed != 0 || without.Conflicts != 0 {
		t.Errorf("replayed %d with and %d without, conflicts %d without", with.Replayed, without.Replayed, without.Conflicts)
	}
	if n := strings.Count(progress.String(), "SIGKILL"); n != 2*kills {
		t.Errorf("progress tells of %d kills, want %d:\n%s", n, 2*kills, progress.String())
	}
}

// With a single client every kill has to wait for its one request.
func TestKillsMeetRequestsInFlight(t *testing.T) {
	rep, err := Run(t.Context(), Config{Payments: 1, Attempts: 1, Kills: 3, Service: as(t, "service")})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Result{rep.Without, rep.With} {
		if r.Kills == 0 || r.InFlightAtKills != r.Kills {
			t.Errorf("%d kills with %d requests in flight", r.Kills, r.InFlightAtKills)
		}
	}
	if rep.With.ExecutedOnce != 1 || len(rep.Violations) > 0 {
		t.Errorf("with stet: %+v, violations %q", rep.With, rep.Violations)
	}
}

// The storm itself must be able to fail stet.
func TestStormFindsAServiceThatIsNotProtected(t *testing.T) {
	rep, err := Run(t.Context(), Config{Payments: 10, Attempts: 5, Kills: 1, Service: as(t, "liar")})
	if err != nil {
		t.Fatal(err)
	}
	if rep.With.ExecutedTwice == 0 || rep.With.Differing == 0 || len(rep.Violations) < 2 {
		t.Errorf("not found: %+v, violations %q", rep.With, rep.Violations)
	}
}

func TestStormWithoutAnswersEndsAtItsLimitAndCountsThemAsLost(t *testing.T) {
	c := Config{Payments: 3, Attempts: 2, Kills: 1, Service: as(t, "stuck"), within: time.Second}
	r, err := runStorm(t.Context(), c, filepath.Join(t.TempDir(), "stuck"), true)
	if err != nil {
		t.Fatal(err)
	}
	if !r.CutShort || r.Lost != 3 || len(violations(r)) < 2 {
		t.Errorf("%+v, violations %q", r, violations(r))
	}
}

func TestRunLeavesNothingBehind(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	stop := writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), "SIGKILL") {
			cancel(interrupted) // in the middle of a restart
		}
		return len(p), nil
	})
	_, err := Run(ctx, Config{Payments: 40, Attempts: 5, Kills: 3, Service: as(t, "service"), Progress: stop})
	if !errors.Is(err, interrupted) {
		t.Errorf("Run: %v, want that it was interrupted", err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// holdAll is a lag that no test lives to see the end of.
const holdAll = "500s"

// The charge is committed, the answer is not sent, and the process dies: with
// stet the retry gets the answer, without stet it pays again.
func TestRetryAfterAKillBetweenCommitAndAnswerIsReplayed(t *testing.T) {
	for _, tc := range []struct {
		name    string
		flags   []string
		marked  string
		charges int
	}{
		{"with stet", []string{"-protected"}, "true", 1},
		{"without stet", nil, "", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags := append([]string{"-dir", t.TempDir(), "-life", "1m"}, tc.flags...)
			s := &server{command: as(t, "service"), flags: append(flags, "-lag", holdAll), addrArg: "-addr"}
			t.Cleanup(s.Kill)
			if err := s.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			in := newIntent(payment{"order-1", 4200})
			cut := make(chan error, 1)
			go func() {
				_, _, err := post(t.Context(), s.addr, in)
				cut <- err
			}()
			waitFor(t, func() bool { return strings.Contains(get(t, s.addr, "/ledger"), "order-1") })
			killed := s.Process()
			s.Kill()
			if !killed.Killed() {
				t.Fatal("the service did not end by SIGKILL")
			}
			if err := <-cut; err == nil {
				t.Fatal("the first request was answered; it should have been cut off")
			}
			s.flags = append(flags, "-lag", "0")
			if err := s.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			res, body, err := post(t.Context(), s.addr, in)
			if err != nil || res.StatusCode != http.StatusCreated || res.Header.Get(replayed) != tc.marked {
				t.Fatalf("retry: %v, %v, body %s", err, res, body)
			}
			s.Stop(crash.StopGrace)
			ledger, err := readLedger(t.Context(), ledgerPath(flags[1]))
			if err != nil || len(ledger) != tc.charges {
				t.Fatalf("ledger: %v, %v; want %d charges", ledger, err, tc.charges)
			}
			in.told.acks[body] = 1
			if r := account([]observed{in.told}, ledger); r.Lost != 0 {
				t.Errorf("the answer %s is not in the ledger %v", body, ledger)
			}
		})
	}
}

func TestServiceDiesWithItsParent(t *testing.T) {
	exe := as(t, "parent")[0]
	cmd := exec.Command(exe, "-dir", t.TempDir(), "-life", "1m")
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
		t.Fatalf("the parent said %q, %v", line, err)
	}
	waitFor(t, func() bool { return get(t, addr, "/healthz") == "" })
}

func TestServiceEndsWhenItsLifeIsOver(t *testing.T) {
	s := &server{command: as(t, "service"), flags: []string{"-dir", t.TempDir(), "-life", "1s"}}
	t.Cleanup(s.Kill)
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Process().Exited():
	case <-time.After(time.Minute):
		t.Error("it lives on")
	}
}

func TestServiceThatCannotStartSaysWhy(t *testing.T) {
	s := &server{command: as(t, "service"), flags: []string{"-dir", filepath.Join(t.TempDir(), "missing"), "-life", "1m"}}
	if err := s.start(t.Context()); err == nil || !strings.Contains(err.Error(), "it said: ") {
		t.Errorf("start: %v", err)
	}
	if err := ServiceMain(t.Context(), nil, strings.NewReader(""), io.Discard); err == nil {
		t.Error("a service without a folder started")
	}
}

// waitFor polls cond, which another process makes true.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !cond() {
		if crash.Pause(ctx, healthPause) != nil {
			t.Fatal("it did not happen within a minute")
		}
	}
}

func post(ctx context.Context, addr string, in *intent) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/payments", strings.NewReader(string(in.body)))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", in.key)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// get returns the body at path, or "" if there is no answer.
func get(t *testing.T, addr, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	return string(b)
}
