package stetclient_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

var kills = flag.Int("kills", 60, "clients killed in a journaled call, and again in Resume")

// The environment of a child.
const (
	childJob     = "STETCLIENT_CHILD" // call or resume
	childJournal = "STETCLIENT_JOURNAL"
	childURL     = "STETCLIENT_URL"
	childName    = "STETCLIENT_NAME"
	childStep    = "STETCLIENT_DIES_AT"
)

// childMain is the client that is killed: it dies of SIGKILL at its step.
func childMain() bool {
	job := os.Getenv(childJob)
	if job == "" {
		return false
	}
	child.Ready(os.Stdout, "")
	if at := os.Getenv(childStep); at != "" {
		fault.Set(func(p fault.Point) {
			if string(p) == at {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // the signal is on its way
			}
		})
	}
	ctx, cancel := child.WithParent(context.Background(), os.Stdin)
	defer cancel()
	j, err := journal.Open(ctx, os.Getenv(childJournal), journal.Options{})
	if err == nil {
		defer j.Close()
		if job == "call" {
			err = charge(ctx, j, os.Getenv(childURL), os.Getenv(childName))
		} else {
			_, err = persistent(j).Resume(ctx, stetclient.ResumeOptions{})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return true
}

// persistent is a Transport with a journal.
func persistent(j stetclient.Journal) *stetclient.Transport {
	tr, err := stetclient.New(nil, stetclient.Options{Journal: j, Policy: stetclient.Policy{Base: time.Millisecond, Cap: 50 * time.Millisecond}})
	if err != nil {
		panic(err)
	}
	return tr
}

// charge makes the journaled call of a name.
func charge(ctx context.Context, j stetclient.Journal, url, name string) error {
	tr := persistent(j)
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(stetclient.WithIntent(ctx, name), http.MethodPost, url, strings.NewReader(name))
	if err != nil {
		return err
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusCreated || string(body) != name+", charge 1") {
		err = fmt.Errorf("%s: got %d %q", name, res.StatusCode, body)
	}
	return err
}

// Steps of the server at which it has its client killed.
const (
	serverBefore  = "server.before"
	serverDuring  = "server.during"
	serverAfter   = "server.after"
	serverHalfway = "server.halfway" // the response
)

// killer serves charges, and kills the client at a step of its own.
type killer struct {
	effects ledger
	inner   http.Handler

	mu     sync.Mutex
	at     string
	victim func() // kills the client, and waits for its end
	keys   map[string]map[string]bool
}

// kill kills the client if this is its step.
func (u *killer) kill(at string) {
	u.mu.Lock()
	victim := u.victim
	if u.at != at {
		victim = nil
	} else {
		u.at = ""
	}
	u.mu.Unlock()
	if victim != nil {
		victim()
	}
}

func (u *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.kill(serverBefore)
	rec := httptest.NewRecorder()
	u.inner.ServeHTTP(rec, r)
	u.kill(serverAfter)
	w.Header().Set("Content-Length", fmt.Sprint(rec.Body.Len()))
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes()[:1])
	_ = http.NewResponseController(w).Flush()
	u.kill(serverHalfway)
	_, _ = w.Write(rec.Body.Bytes()[1:])
}

// handler executes a charge.
func (u *killer) handler(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	name := string(body)
	u.kill(serverDuring)
	u.mu.Lock()
	if u.keys[name] == nil {
		u.keys[name] = make(map[string]bool)
	}
	u.keys[name][r.Header.Get("Idempotency-Key")] = true
	u.mu.Unlock()
	u.effects.add(name)
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "%s, charge %d", name, u.effects.of(name))
}

// run starts a child, which dies at a step, and waits for its end.
func (u *killer) run(t *testing.T, job, dir, url, name, at string) (killed bool) {
	t.Helper()
	started := make(chan struct{})
	var p *child.Process
	u.mu.Lock()
	u.at = at
	u.victim = func() {
		<-started
		if p != nil {
			p.Kill()
		}
	}
	u.mu.Unlock()
	p, err := child.Start(t.Context(), child.Command{Env: []string{
		childJob + "=" + job, childJournal + "=" + filepath.Join(dir, "journal"), childURL + "=" + url, childName + "=" + name, childStep + "=" + at,
		"GORACE=atexit_sleep_ms=0", // else a child that is not killed takes a second to end
	}})
	close(started)
	if err != nil && p == nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		t.Errorf("%s, %s at %q: the client hangs", name, job, at)
	}
	p.Kill()
	return p.Killed()
}

// TestKilledClientResumes kills a client at each step of a journaled call, and
// the next one at a step of Resume. The third one resumes in peace, and after
// that the operation has had exactly one effect, under one key.
func TestKilledClientResumes(t *testing.T) {
	steps := []string{serverBefore, serverDuring, serverAfter, serverHalfway}
	for _, s := range fault.ClientPoints {
		steps = append(steps, string(s))
	}
	u := &killer{keys: make(map[string]map[string]bool)}
	u.inner = protect(t, http.HandlerFunc(u.handler))
	srv := httptest.NewServer(u)
	defer srv.Close()
	dir := t.TempDir()
	died := make(map[string]int)
	for i := range *kills {
		name, at := fmt.Sprint("order ", i), steps[i%len(steps)]
		if !u.run(t, "call", dir, srv.URL, name, at) {
			t.Errorf("%s: the client was not killed at %s", name, at)
		}
		died[at]++
		second := steps[rand.N(len(steps))]
		if u.run(t, "resume", dir, srv.URL, name, second) {
			died["resume "+second]++
		}
		want := 1
		if at == string(fault.IntentBefore) { // then the intent was not stored
			want = 0
		}
		u.peace(t, dir, srv.URL, name, want)
		if t.Failed() {
			t.Fatalf("%s, killed at %s and in Resume at %s", name, at, second)
		}
	}
	t.Logf("%d clients killed: %v", *kills, died)
}

// peace resumes, and then calls as a client that does not know whether it called before.
func (u *killer) peace(t *testing.T, dir, url, name string, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j, err := journal.Open(ctx, filepath.Join(dir, "journal"), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	tr := persistent(j)
	defer tr.CloseIdleConnections()
	got, err := tr.Resume(ctx, stetclient.ResumeOptions{})
	if err != nil || got.Pending != 0 {
		t.Errorf("Resume: %+v, %v", got, err)
	}
	if n := u.effects.of(name); n != want {
		t.Errorf("after Resume there are %d effects, want %d", n, want)
	}
	if err := charge(ctx, j, url, name); err != nil {
		t.Error(err)
	}
	if n := u.effects.of(name); n != 1 || len(u.keys[name]) != 1 {
		t.Errorf("in the end there are %d effects under %d keys, want one", n, len(u.keys[name]))
	}
}
