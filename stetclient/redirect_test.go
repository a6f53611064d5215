package stetclient_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// moved is a service: /old and /lost have moved to /new, /see to /done, whose
// host is another.
type moved struct {
	log  []string // method, URL and key of each request
	auth []string
	lost int // attempts at /lost to lose, and at /new
	code int // of /new
}

func (m *moved) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	m.log = append(m.log, req.Method+" "+req.URL.String()+" "+req.Header.Get("Idempotency-Key"))
	m.auth = append(m.auth, req.Header.Get("Authorization"))
	if m.lost > 0 && (req.URL.Path == "/lost" || req.URL.Path == "/new") {
		m.lost--
		return nil, errReset
	}
	switch req.URL.Path {
	case "/old", "/lost":
		return status(307, "Location", "http://other.test/new")(req)
	case "/see":
		return status(303, "Location", "/done")(req)
	case "/done":
		return status(302, "Location", "http://other.test/page")(req)
	case "/loop":
		return status(308, "Location", "/loop")(req)
	case "/nowhere":
		return status(308, "Location", "http://[::1")(req)
	default:
		return answer(m.code, "done")(req)
	}
}

// send makes a POST with an http.Client.
func (m *moved) send(ctx context.Context, t *testing.T, client *http.Client, path string) (*http.Response, error) {
	t.Helper()
	m.log = nil
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://service.test"+path, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	return res, err
}

// keys are those of the requests, in the order in which they first appear.
func (m *moved) keys() []string {
	var all []string
	for _, line := range m.log {
		if key := line[strings.LastIndex(line, " ")+1:]; !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

// client returns an http.Client of a service that has moved.
func client(t *testing.T, m *moved, o stetclient.Options) (*http.Client, *stetclient.Transport) {
	t.Helper()
	o.Policy, o.Budget = quick, unbounded
	tr, err := stetclient.New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: tr}, tr
}

func TestRedirectedIntentHasOneKeyAndOneOutcome(t *testing.T) {
	j := open(t, journal.Options{})
	m := &moved{code: 201}
	c, _ := client(t, m, stetclient.Options{Journal: j})
	named := stetclient.WithIntent(t.Context(), "order 1")
	for _, ctx := range []context.Context{t.Context(), named, stetclient.WithKey(t.Context(), "mine")} {
		res, err := m.send(ctx, t, c, "/old")
		if err != nil || res.StatusCode != 201 {
			t.Fatalf("got %v, %v", res, err)
		}
		if len(m.log) != 2 || len(m.keys()) != 1 || m.keys()[0] == "" || len(pending(t, j)) != 0 {
			t.Errorf("the service got %q; %d are pending", m.log, len(pending(t, j)))
		}
	}
	if res, err := m.send(named, t, c, "/old"); err != nil || res.StatusCode != 201 || len(m.log) != 0 {
		t.Errorf("again: %v, %v, and the service got %q", res, err, m.log)
	}
}

func TestGetAfterARedirectIsNoOperation(t *testing.T) {
	j := open(t, journal.Options{})
	m := &moved{code: 200}
	c, _ := client(t, m, stetclient.Options{Journal: j})
	plain, _ := client(t, m, stetclient.Options{})
	for _, ctx := range []context.Context{t.Context(), stetclient.WithIntent(t.Context(), "order 1"), stetclient.WithKey(t.Context(), "mine")} {
		if res, err := m.send(ctx, t, c, "/see"); err != nil || res.StatusCode != 200 {
			t.Fatalf("got %v, %v", res, err)
		}
		if len(m.log) != 3 || !strings.HasPrefix(m.log[0], "POST ") || m.log[1] != "GET http://service.test/done " || m.log[2] != "GET http://other.test/page " || len(pending(t, j)) != 0 {
			t.Errorf("the service got %q; %d are pending", m.log, len(pending(t, j)))
		}
	}
	if res, err := m.send(stetclient.WithIntent(t.Context(), "order 1"), t, c, "/see"); err != nil || res.StatusCode != 200 || len(m.log) != 2 {
		t.Errorf("again: %v, %v, and the service got %q", res, err, m.log)
	}
	if res, err := m.send(stetclient.WithKey(t.Context(), "mine"), t, plain, "/see"); err != nil || res.StatusCode != 200 || len(m.log) != 3 || m.log[1] != "GET http://service.test/done " {
		t.Errorf("without a journal: %v, %v, and the service got %q", res, err, m.log)
	}
}

func TestResumeFollowsRedirects(t *testing.T) {
	j := open(t, journal.Options{})
	m := &moved{code: 201, lost: 2}
	c, tr := client(t, m, stetclient.Options{Journal: j})
	_, err := m.send(stetclient.WithIntent(t.Context(), "order 1"), t, c, "/old")
	if e := wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted); !e.Pending {
		t.Error("it is not pending")
	}
	key := m.keys()
	m.log, m.auth = nil, nil
	prepare := func(r *http.Request) error {
		r.Header.Set("Authorization", "secret")
		return nil
	}
	if got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{Prepare: prepare}); err != nil || got.Settled != 1 {
		t.Errorf("Resume: %+v, %v", got, err)
	}
	if len(m.log) != 2 || !slices.Equal(m.keys(), key) || !slices.Equal(m.auth, []string{"secret", ""}) {
		t.Errorf("the services got %q with %q, want the key %q", m.log, m.auth, key)
	}
	if res, err := m.send(stetclient.WithIntent(t.Context(), "order 1"), t, c, "/old"); err != nil || res.StatusCode != 201 || len(m.log) != 0 {
		t.Errorf("again: %v, %v, and the service got %q", res, err, m.log)
	}
}

func TestResumeDoesNotFollowForEver(t *testing.T) {
	for _, path := range []string{"/loop", "/nowhere"} {
		j := open(t, journal.Options{})
		m := &moved{code: 201}
		c, tr := client(t, m, stetclient.Options{Journal: j})
		if _, err := m.send(stetclient.WithIntent(t.Context(), "order 1"), t, c, path); err == nil {
			t.Error("no error")
		}
		m.log = nil
		var last error
		got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{Once: true, Progress: func(p stetclient.Progress) { last = p.Err }})
		if err != nil || got.Pending != 1 || got.Settled != 0 || len(m.log) > 11 {
			t.Errorf("Resume: %+v, %v, and the service got %d requests", got, err, len(m.log))
		}
		wantError(t, last, stetclient.ReasonFinal, stet.MayHaveExecuted)
	}
}

// TestRedirectIsNoExecution: what is refused after it was not executed, unless an
// attempt before it was lost.
func TestRedirectIsNoExecution(t *testing.T) {
	for _, o := range []stetclient.Options{{}, {Journal: open(t, journal.Options{})}} {
		m := &moved{code: 401}
		c, _ := client(t, m, o)
		if res, err := m.send(t.Context(), t, c, "/old"); err != nil || res.StatusCode != 401 {
			t.Errorf("refused: %v, %v", res, err)
		}
		if o.Journal != nil && len(pending(t, o.Journal)) != 0 {
			t.Error("a refused intent is kept")
		}
		m.lost = 1
		_, err := m.send(t.Context(), t, c, "/lost")
		wantError(t, err, stetclient.ReasonRefused, stet.MayHaveExecuted)
	}
}

func TestRedirectThatIsNotFollowedLeavesTheIntentPending(t *testing.T) {
	j := open(t, journal.Options{})
	m := &moved{code: 201}
	c, tr := client(t, m, stetclient.Options{Journal: j})
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := m.send(t.Context(), t, c, "/old")
	if err != nil || res.StatusCode != 307 {
		t.Fatalf("got %v, %v", res, err)
	}
	if info, _ := stetclient.InfoOf(res); !info.Pending || len(pending(t, j)) != 1 {
		t.Errorf("got %+v; %d are pending", info, len(pending(t, j)))
	}
	if got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{}); err != nil || got.Settled != 1 {
		t.Errorf("Resume: %+v, %v", got, err)
	}
	// One that cannot be followed is the outcome.
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://service.test/old", io.NopCloser(strings.NewReader("x")))
	res, err = c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if info, _ := stetclient.InfoOf(res); info.Pending || len(pending(t, j)) != 0 {
		t.Errorf("got %+v; %d are pending", info, len(pending(t, j)))
	}
}

func TestResumeTakesARedirectToAGetForTheOutcome(t *testing.T) {
	j := open(t, journal.Options{})
	in := stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/see", Created: time.Now()}
	if _, _, err := j.Add(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	m := &moved{code: 201}
	_, tr := client(t, m, stetclient.Options{Journal: j})
	var last stetclient.Progress
	got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{Progress: func(p stetclient.Progress) { last = p }})
	if err != nil || got.Settled != 1 || last.Status != 303 || len(m.log) != 1 {
		t.Errorf("%+v, %v, progress %+v; the service got %q", got, err, last, m.log)
	}
}
