package stetclient_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// moved is a service. /old and /lost redirect to /new, and /see to /done. The first lost
// attempts at /lost and /new get no response. code is the status of /new.
type moved struct {
	log  []string // method, path and key of each request
	lost int
	code int
}

func (m *moved) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	m.log = append(m.log, strings.TrimSpace(req.Method+" "+req.URL.Path+" "+req.Header.Get("Idempotency-Key")))
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
		return status(200)(req)
	default:
		return answer(m.code, "done")(req)
	}
}

func TestRedirects(t *testing.T) {
	for _, c := range []struct {
		name      string
		path      string
		lost      int
		code      int
		journaled bool
		status    int               // 0: an error
		reason    stetclient.Reason // of the error
		x         stet.Execution
		log       []string
	}{
		{"307 keeps the key", "/old", 0, 201, false, 201, "", 0, []string{"POST /old k", "POST /new k"}},
		{"a refusal after a 307 is an outcome", "/old", 0, 401, false, 401, "", 0, []string{"POST /old k", "POST /new k"}},
		{"a refusal after a lost attempt and a 307 is none", "/lost", 1, 401, false, 0, stetclient.ReasonRefused, stet.MayHaveExecuted, []string{"POST /lost k", "POST /lost k", "POST /new k"}},
		{"303 is the outcome, and the GET has no key", "/see", 0, 201, false, 200, "", 0, []string{"POST /see k", "GET /done"}},
		{"303, with a journal", "/see", 0, 201, true, 200, "", 0, []string{"POST /see k", "GET /done"}},
		{"307 is not followed with a journal", "/old", 0, 201, true, 0, stetclient.ReasonFinal, stet.NotExecuted, []string{"POST /old k"}},
		{"307 after a lost attempt, with a journal", "/lost", 1, 201, true, 0, stetclient.ReasonFinal, stet.MayHaveExecuted, []string{"POST /lost k", "POST /lost k"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, o := &moved{lost: c.lost, code: c.code}, stetclient.Options{Policy: quick}
			if c.journaled {
				o.Journal = open(t, journal.Options{})
			}
			tr, err := stetclient.New(m, o)
			if err != nil {
				t.Fatal(err)
			}
			req, _ := http.NewRequestWithContext(stetclient.WithKey(t.Context(), "k"), http.MethodPost, "http://service.test"+c.path, strings.NewReader("x"))
			res, err := (&http.Client{Transport: tr}).Do(req)
			for i := range m.log {
				m.log[i] = strings.ReplaceAll(m.log[i], `"`, "")
			}
			if !slices.Equal(m.log, c.log) {
				t.Errorf("the service received %q, want %q", m.log, c.log)
			}
			if c.status == 0 {
				e := wantError(t, err, c.reason, c.x)
				if c.journaled && (!e.Pending || len(pending(t, o.Journal)) != 1) {
					t.Errorf("the intent is not pending: %+v", e)
				}
				return
			}
			if err != nil || res.StatusCode != c.status {
				t.Fatalf("got %v, %v, want %d", res, err, c.status)
			}
			_ = res.Body.Close()
			if c.journaled && len(pending(t, o.Journal)) != 0 {
				t.Error("the intent is pending")
			}
		})
	}
}
