// Package python tests the service of this folder behind stet proxy.
package python

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }

// patience bounds everything that is waited for.
const patience = time.Minute

// shop is the service behind the proxy.
type shop struct {
	*testing.T
	python         string
	ledger         string
	service, proxy *rig.Program
}

func open(t *testing.T) *shop {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("this example needs python3: apt-get install python3")
	}
	dir := t.TempDir()
	s := &shop{T: t, python: python, ledger: filepath.Join(dir, "ledger.db")}
	s.serve("PORT=0")
	s.proxy = rig.Launch(t, exec.Command(rig.Stet(t), "proxy", "--config", "stet.yaml", "--upstream", s.service.URL,
		"--store", filepath.Join(dir, "stet.db"), "--listen", "127.0.0.1:0", "--admin-listen", "off"))
	return s
}

// serve starts the service, with settings of its own, again where it was before.
func (s *shop) serve(settings ...string) {
	s.Helper()
	cmd := exec.Command(s.python, "server.py")
	cmd.Env = append(os.Environ(), "LEDGER="+s.ledger)
	if s.service != nil {
		cmd.Env = append(cmd.Env, "PORT="+s.service.URL[strings.LastIndex(s.service.URL, ":")+1:])
	}
	cmd.Env = append(cmd.Env, settings...)
	s.service = rig.Launch(s.T, cmd)
}

// answer is a response, as far unchanged to stay the same.
type answer struct {
	status   int
	body     string
	header   string // without Date and what marks a replay
	replayed bool
}

// pay sends a payment through the proxy.
func (s *shop) pay(account, key string, amount int) (a answer) {
	s.Helper()
	a, err := s.try(account, key, amount)
	if err != nil {
		s.Error(err)
	}
	return a
}

func (s *shop) try(account, key string, amount int) (a answer, err error) {
	req, err := http.NewRequest(http.MethodPost, s.proxy.URL+"/payments", strings.NewReader(fmt.Sprintf(`{"amount": %d}`, amount)))
	if err != nil {
		return a, err
	}
	req.GetBody = nil // or the transport might send it twice
	req.Header.Set("X-Account", account)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}).Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	a = answer{status: res.StatusCode, body: string(body), replayed: res.Header.Get("Idempotent-Replayed") == "true"}
	for _, name := range []string{"Date", "Idempotent-Replayed", "Idempotency-Expires", "Cache-Control"} {
		res.Header.Del(name)
	}
	var header strings.Builder
	err = errors.Join(err, res.Header.Write(&header)) // sorted
	a.header = header.String()
	return a, err
}

// charges is how many charges of an amount are in the service's ledger.
func (s *shop) charges(amount int) int {
	s.Helper()
	res, err := http.Get(s.service.URL + "/payments")
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return bytes.Count(body, fmt.Appendf(nil, `"amount": %d,`, amount))
}

// paid checks that an amount was charged n times.
func (s *shop) paid(amount, n int) {
	s.Helper()
	if got := s.charges(amount); got != n {
		s.Errorf("%d was charged %d times; want %d", amount, got, n)
	}
}

// replay is an answer as a retry gets it.
func (a answer) replay() answer {
	a.replayed = true
	return a
}

func (s *shop) want(a answer, status int, problem string) {
	s.Helper()
	if a.status != status || !strings.Contains(a.body, problem) {
		s.Errorf("%d %s; want %d, %q", a.status, a.body, status, problem)
	}
}

func TestServiceInPythonGetsEveryPromiseThatNeedsNoCrash(t *testing.T) {
	s := open(t)
	first := s.pay("acct_1", `"order-1"`, 101)
	s.want(first, http.StatusCreated, `"amount": 101`)
	if again := s.pay("acct_1", `"order-1"`, 101); again != first.replay() || !strings.Contains(first.header, "Location: /payments/1\r\n") {
		t.Errorf("first %+v\nagain %+v", first, again)
	}
	if bare := s.pay("acct_1", "order-1", 101); bare != first.replay() {
		t.Errorf("the key without quotes: %+v", bare)
	}
	s.paid(101, 1)
	s.want(s.pay("acct_1", `"order-1"`, 102), http.StatusUnprocessableEntity, "#mismatch")
	s.want(s.pay("acct_1", "", 102), http.StatusBadRequest, "key-missing")
	s.want(s.pay("acct_1", `"order`, 102), http.StatusBadRequest, "key-invalid")
	s.want(s.pay("", `"order-1"`, 102), http.StatusForbidden, "scope-missing")
	s.paid(102, 0)
	other := s.pay("acct_2", `"order-1"`, 101)
	s.want(other, http.StatusCreated, `"amount": 101`)
	if other.body == first.body || other.replayed {
		t.Errorf("another account got %+v", other)
	}
	s.paid(101, 2)
}

func TestDuplicateOfAPaymentAtWorkIsRefused(t *testing.T) {
	s := open(t)
	s.service.Signal(t, syscall.SIGSTOP)
	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- s.pay("acct_1", `"order-1"`, 200) }()
	}
	s.want(<-answers, http.StatusConflict, "in-flight") // while the other one waits for the service
	s.service.Signal(t, syscall.SIGCONT)
	first := <-answers
	s.want(first, http.StatusCreated, `"amount": 200`)
	if again := s.pay("acct_1", `"order-1"`, 200); again != first.replay() {
		t.Errorf("first %+v\nagain %+v", first, again)
	}
	s.paid(200, 1)
}

// breakOff has the service die in the middle of a payment, after it has become
// so, and returns a retry's reply while the service is away.
func (s *shop) breakOff(amount int, so func()) {
	s.Helper()
	first := make(chan answer)
	go func() { first <- s.pay("acct_1", `"order-1"`, amount) }()
	so()
	s.service.Kill()
	s.want(<-first, http.StatusGatewayTimeout, "outcome-unknown")
	s.want(s.pay("acct_1", `"order-1"`, amount), http.StatusGatewayTimeout, "outcome-unknown")
	s.want(s.pay("acct_1", `"order-1"`, amount+1), http.StatusUnprocessableEntity, "#mismatch")
}

func TestPaymentThatHappenedBeforeTheServiceDiedIsFoundOut(t *testing.T) {
	s := open(t)
	s.service.Kill()
	s.serve("ANSWER_SECONDS=1000")
	s.breakOff(300, func() {
		for end := time.Now().Add(patience); s.charges(300) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing was charged")
			}
		}
	})
	s.serve()
	found := s.pay("acct_1", `"order-1"`, 300)
	s.want(found, http.StatusCreated, `"amount": 300`)
	if again := s.pay("acct_1", `"order-1"`, 300); !found.replayed || again != found || !strings.Contains(found.header, "Location: /payments/1\r\n") {
		t.Errorf("found %+v\nagain %+v", found, again)
	}
	s.paid(300, 1)
}

func TestPaymentThatHadNotHappenedWhenTheServiceDiedIsMadeOnce(t *testing.T) {
	s := open(t)
	s.service.Kill()
	s.serve("CARD_SECONDS=1000")
	s.breakOff(400, func() { s.service.Says(t, "charging 400") })
	s.serve()
	s.paid(400, 0)
	first := s.pay("acct_1", `"order-1"`, 400)
	s.want(first, http.StatusCreated, `"amount": 400`)
	if again := s.pay("acct_1", `"order-1"`, 400); first.replayed || again != first.replay() {
		t.Errorf("first %+v\nagain %+v", first, again)
	}
	s.paid(400, 1)
}

// A payment that the service denied must not happen later.
func TestServiceRefusesAnAttemptThatItHasGivenUp(t *testing.T) {
	s := open(t)
	send := func(method, path, fence string) int {
		var body io.Reader
		if method == http.MethodPost {
			body = strings.NewReader(`{"amount": 500}`)
		}
		req, err := http.NewRequest(method, s.service.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Stet-Operation", "0a")
		req.Header.Set("Stet-Fence", fence)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	for i, step := range []struct {
		method, path, fence string
		want                int
	}{
		{http.MethodGet, "/payments/outcome", "7", http.StatusNotFound},
		{http.MethodPost, "/payments", "7", http.StatusConflict},
		{http.MethodPost, "/payments", "8", http.StatusCreated},
		{http.MethodGet, "/payments/outcome", "8", http.StatusOK},
	} {
		if got := send(step.method, step.path, step.fence); got != step.want {
			t.Errorf("step %d, %+v: %d", i+1, step, got)
		}
	}
	s.paid(500, 1)
}
