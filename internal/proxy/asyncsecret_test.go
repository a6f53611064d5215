package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// TestNothingOfAnAcceptedOperationIsLogged: neither its key, nor its content, nor the response.
func TestNothingOfAnAcceptedOperationIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		more, route string
		status      int
	}{
		"a failure":              {"", "", 500},
		"a refusal":              {"", "", 422},
		"nothing was executed":   {", max_attempts: 2", "", 429},
		"a failure, to the end":  {", repeatable: true, max_attempts: 2", "", 500},
		"settles: to the end":    {", max_attempts: 2", ", settles: service", 500},
		"settles: nothing of it": {", max_attempts: 2", ", settles: service", 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, `"secret-answer"`)
			})
			f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, c.more, c.route))
			f.outcome("secret-key", `"secret-body"`)
			if log := f.log.String(); strings.Contains(log, "secret") {
				t.Errorf("the log: %s", log)
			}
		})
	}
}

// TestAcceptedOperationIsEncrypted: the stored request, and the service's messages about
// its progress.
func TestAcceptedOperationIsEncrypted(t *testing.T) {
	begun, end := make(chan http.Header), make(chan struct{})
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) {
		begun <- r.Header
		<-end
	})
	st := memory.New(memory.Options{})
	f := startAsync(t, st, orders(s.URL, "", "")+"encryption: {keys: [{name: a, file: "+secretFile(t)+"}]}\n")
	location := f.post("secret-key", `"secret-body"`, "User-Agent", "secret-agent").header.Get("Location")
	h := <-begun
	if r := f.send("PATCH", location, "", `{"fraction":0.5,"message":"secret-progress"}`, "Stet-Progress", h.Get("Stet-Progress")); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if d := f.look(location); d.Progress == nil || d.Progress.Message != "secret-progress" {
		t.Errorf("%+v", d)
	}
	rec, err := st.Look(t.Context(), store.Digest("", "single-tenant", "secret-key"))
	if kept := fmt.Sprintf("%s %s %v", rec.Work, rec.Notes.Data, rec); err != nil || strings.Contains(kept, "secret") || len(rec.Work) == 0 {
		t.Errorf("%v, %s", err, kept)
	}
	close(end)
	if r := f.outcome("secret-key", `"secret-body"`); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestMethodsOfAcceptedOperations: methods without content, too.
func TestMethodsOfAcceptedOperations(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Was", fmt.Sprintf("%s %d %q", r.Method, r.ContentLength, b))
		w.Header().Set("Content-Length", "2")
		_, _ = io.WriteString(w, "ok")
	})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", ", methods: [GET, HEAD, PUT, DELETE, PURGE, OPTIONS]"))
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "PURGE", "OPTIONS"} {
		for range 2 {
			r := f.send(method, "/payments", method, "", "Prefer", "wait=10")
			if r.status != 200 || r.header.Get("X-Was") != method+` 0 ""` || r.body != "ok" && method != "HEAD" {
				t.Errorf("%s: %d %v %q", method, r.status, r.header, r.body)
			}
		}
	}
}

// TestSettledOutcomeIsNotLogged: a failure has content, too.
func TestSettledOutcomeIsNotLogged(t *testing.T) {
	s := newSettling(t, func(s *settling, w http.ResponseWriter, r *http.Request) {
		c, err := store.ParseClaim(r.Header.Get(proxy.HeaderClaim))
		if err == nil {
			err = s.store.Settle(r.Context(), c, store.Settlement{State: store.Failed, Result: store.Result{Status: 422, Type: "text/plain", Body: []byte("secret")}},
				store.Retention{Result: time.Hour, Tombstone: time.Hour})
		}
		if err != nil {
			t.Error(err)
		}
	})
	f := startAsync(t, s.store, orders(s.URL, "", ", settles: service"))
	if r := f.outcome("k", "{}"); r.status != 422 || r.body != "secret" {
		t.Errorf("%d %s", r.status, r.body)
	}
	if err := f.proxy.Close(); err != nil { // after which all was logged
		t.Error(err)
	}
	if log := f.log.String(); strings.Contains(log, "secret") || !strings.Contains(log, "an operation failed") {
		t.Errorf("the log: %s", log)
	}
}
