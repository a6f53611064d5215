package proxy_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// settles is a route whose service settles.
func settles(upstream, more string) string {
	return "upstream: {url: " + upstream + "}\nscope: single-tenant\nroutes:\n  - {path: /payments, settles: service" + more + "}\n"
}

// settling is a service that settles in the store that the proxy has.
type settling struct {
	*service
	store  store.Store
	claims chan string
}

func newSettling(t *testing.T, work func(s *settling, w http.ResponseWriter, r *http.Request)) *settling {
	s := &settling{store: memory.New(memory.Options{}), claims: make(chan string, 10)}
	s.service = serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		s.claims <- r.Header.Get(proxy.HeaderClaim)
		work(s, w, r)
	})
	return s
}

func (s *settling) settle(claim string) error {
	c, err := store.ParseClaim(claim)
	if err != nil {
		return err
	}
	out := store.Settlement{State: store.Completed, Result: store.Result{Status: 201, Type: "text/plain", Body: []byte("settled")}}
	return s.store.Settle(context.Background(), c, out, store.Retention{Result: time.Hour, Tombstone: time.Hour})
}

func TestClaimReachesTheServiceAndItsOutcomeReachesTheClient(t *testing.T) {
	s := newSettling(t, func(s *settling, w http.ResponseWriter, r *http.Request) {
		if err := s.settle(r.Header.Get(proxy.HeaderClaim)); err != nil {
			t.Error(err)
		}
		w.WriteHeader(201)
		_, _ = io.WriteString(w, "answered")
	})
	f := startOn(t, s.store, settles(s.URL, ""))
	for i := range 2 {
		got := f.post("k", "{}", proxy.HeaderClaim, "c1."+strings.Repeat("0", 64)+"."+strings.Repeat("0", 32)+"."+strings.Repeat("0", 16))
		if got.status != 201 || got.body != "settled" || got.replayed() != (i > 0) {
			t.Errorf("answer %d: %d %q, replayed %v", i, got.status, got.body, got.replayed())
		}
		if claim := got.header.Get(proxy.HeaderClaim); claim != "" {
			t.Errorf("the client gets the claim %q", claim)
		}
	}
	if s.count("k") != 1 {
		t.Errorf("executed %d times", s.count("k"))
	}
	rec, _ := s.store.Read(t.Context(), store.Digest("", "single-tenant", "k"))
	if claim := <-s.claims; claim != rec.Claim().String() {
		t.Errorf("the service got the claim %q; want that of the record", claim)
	}
	if log := f.log.String(); strings.Contains(log, rec.Owner.String()) {
		t.Errorf("the log has the claim: %s", log)
	}
}

// The service is reached, and its connection breaks.
func TestSettledOutcomeCountsAfterTheServiceDies(t *testing.T) {
	for name, c := range map[string]struct {
		settled bool
		part    bool // of the answer is sent
		status  int
		problem string
	}{
		"before it settles":                         {false, false, 503, "not-executed"},
		"before it settles, having begun to answer": {false, true, 503, "not-executed"},
		"after it has settled":                      {true, false, 201, ""},
		"after it has settled, in its answer":       {true, true, 201, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSettling(t, func(s *settling, w http.ResponseWriter, r *http.Request) {
				if c.settled {
					if err := s.settle(r.Header.Get(proxy.HeaderClaim)); err != nil {
						t.Error(err)
					}
				}
				if c.part {
					w.Header().Set("Content-Length", "100")
					w.WriteHeader(200)
					_, _ = io.WriteString(w, "part")
					_ = http.NewResponseController(w).Flush()
				}
				_ = conn(r).SetLinger(0)
				_ = conn(r).Close()
			})
			f := startOn(t, s.store, settles(s.URL, ""))
			if got := f.post("k", "{}"); got.status != c.status || got.problem() != c.problem {
				t.Errorf("%d %q %q; want %d %q", got.status, got.problem(), got.body, c.status, c.problem)
			}
			err := s.settle(<-s.claims)
			if c.settled && err != nil || !c.settled && !errors.Is(err, store.ErrFenced) {
				t.Errorf("settling late: %v", err)
			}
			if state := f.state("k"); state == store.Unknown || state == store.Running {
				t.Errorf("the record is %v", state)
			}
		})
	}
}

func TestServiceThatSettlesIsTriedAgain(t *testing.T) {
	tries := 0
	s := newSettling(t, func(s *settling, w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); string(body) != "{}" || err != nil {
			t.Errorf("try %d has the body %q, %v", tries+1, body, err)
		}
		if tries++; tries < 3 {
			_ = conn(r).SetLinger(0)
			_ = conn(r).Close()
			return
		}
		if err := s.settle(r.Header.Get(proxy.HeaderClaim)); err != nil {
			t.Error(err)
		}
	})
	f := startOn(t, s.store, settles(s.URL, ", tries: 3"))
	if got := f.post("k", "{}"); got.status != 201 || got.body != "settled" || tries != 3 {
		t.Errorf("%d %q after %d tries", got.status, got.body, tries)
	}
	for i := range 2 {
		if err := s.settle(<-s.claims); !errors.Is(err, store.ErrFenced) {
			t.Errorf("try %d settles late: %v; want it fenced", i+1, err)
		}
	}
}

// Its time is over: it cannot settle any more.
func TestServiceThatIsTooSlowHasNotExecuted(t *testing.T) {
	s := newSettling(t, func(_ *settling, _ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server sees that its client has gone only when the body is read
		<-r.Context().Done()
	})
	f := startOn(t, s.store, settles(s.URL, ", timeout: 200ms"))
	if got := f.post("k", "{}"); got.problem() != "not-executed" {
		t.Errorf("%d %q %s", got.status, got.problem(), got.body)
	}
	if err := s.settle(<-s.claims); !errors.Is(err, store.ErrFenced) {
		t.Errorf("settling late: %v; want it fenced", err)
	}
}

// A service that is not asked to settle learns no claim, whatever its clients send.
func TestClaimIsForRoutesThatSettle(t *testing.T) {
	s := newSettling(t, func(*settling, http.ResponseWriter, *http.Request) {})
	f := startOn(t, s.store, "upstream: {url: "+s.URL+"}\nscope: single-tenant\nroutes:\n  - {path: /payments, key: optional}\n")
	for _, key := range []string{"k", ""} {
		f.post(key, "{}", proxy.HeaderClaim, "forged", "Stet_Claim", "forged")
		if underlined := s.last().Get("Stet_Claim"); underlined != "" {
			t.Errorf("with the key %q the service got a claim in Stet_Claim, which CGI and WSGI take for the same", key)
		}
		if claim := <-s.claims; claim != "" {
			t.Errorf("with the key %q the service got the claim %q", key, claim)
		}
	}
	unkeyed := startOn(t, s.store, settles(s.URL, ", key: optional"))
	unkeyed.post("", "{}", proxy.HeaderClaim, "forged")
	if claim := <-s.claims; claim != "" {
		t.Errorf("without a key the service got the claim %q", claim)
	}
}

func TestWrongSettlesIsAnError(t *testing.T) {
	text := "store: sqlite:stet.db\n" + settles("http://127.0.0.1:1", "")
	if c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(text)), nil); err != nil || c.Check() == nil {
		t.Errorf("a configuration that names SQLite: %v; want it refused", err)
	}
	st, err := sqlite.Open(t.Context(), t.TempDir()+"/stet.db", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(settles("http://127.0.0.1:1", ""))), nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := proxy.New(st, c, proxy.Options{}); err == nil || !strings.Contains(err.Error(), "PostgreSQL") {
		t.Errorf("over SQLite: %v; want it refused", err)
		if err == nil {
			_ = p.Close()
		}
	}
}
