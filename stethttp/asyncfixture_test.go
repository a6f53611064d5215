package stethttp_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

const statusURL = "/operations/"

// accepting is a service that accepts, with its status resource.
func (set *setup) accepting(m *stethttp.Middleware) http.Handler {
	if set.async.StatusURL == "" {
		set.async.StatusURL = statusURL
	}
	a := stethttp.Must(stethttp.NewAsync(m, *set.async))
	set.close = a.Close
	mux := http.NewServeMux()
	mux.Handle("/", a.Accept("orders.create", set.prepare))
	mux.Handle(statusURL, a.Status())
	return mux
}

// order sends an order with a key.
func (s *service) order(key, body string, header ...string) reply {
	s.t.Helper()
	return s.do(s.orderRequest(key, body, header...))
}

func (s *service) orderRequest(key, body string, header ...string) *http.Request {
	s.t.Helper()
	req := s.request("POST", "/orders", key, body, header...)
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

// status asks for the status of what a 202 has accepted.
func (s *service) status(accepted reply, header ...string) reply {
	s.t.Helper()
	return s.do(s.request("GET", accepted.header.Get("Location"), "", "", header...))
}

func (s *service) cancel(accepted reply, header ...string) reply {
	s.t.Helper()
	return s.do(s.request("DELETE", accepted.header.Get("Location"), "", "", header...))
}

// statusDocument is what a status resource says.
type statusDocument struct {
	ID         string
	State      string
	Attempts   int
	Cancelling bool
	Progress   *struct {
		Fraction float64
		Message  string
		At       time.Time
	}
	AcceptedAt time.Time `json:"accepted_at"`
	StartedAt  time.Time `json:"started_at"`
	EndedAt    time.Time `json:"ended_at"`
	ExpiresAt  time.Time `json:"expires_at"`
	Outcome    *struct {
		Status        int
		Result        json.RawMessage
		Problem       *document
		MediaType     string `json:"media_type"`
		ContentCoding string `json:"content_coding"`
		ResultBase64  []byte `json:"result_base64"`
	}
	Problem *document
}

func (r reply) told(t *testing.T) (d statusDocument) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.body), &d); r.err != nil || err != nil || r.header.Get("Content-Type") != "application/json" ||
		r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v %.300q is no status: %v, %v", r.status, r.header, r.body, r.err, err)
	}
	return d
}

// take takes the only operation that waits to be run.
func (s *service) take() *stet.Lease {
	s.t.Helper()
	items, err := s.engine.Due(context.Background(), 10, time.Hour)
	if err != nil || len(items) != 1 || items[0].Name != "orders.create" {
		s.t.Fatalf("due: %+v, %v; want one of orders.create", items, err)
	}
	run, err := s.engine.Take(context.Background(), items[0])
	if err != nil || run.Replayed() {
		s.t.Fatalf("taken: %+v, %v", run, err)
	}
	s.runs.Add(1)
	return run
}

// wantNothingDue checks that no operation waits to be run.
func (s *service) wantNothingDue() {
	s.t.Helper()
	if items, err := s.engine.Due(context.Background(), 10, time.Hour); err != nil || len(items) > 0 {
		s.t.Errorf("due: %+v, %v; want nothing", items, err)
	}
}

// outcome is what a worker settles with.
func outcome(state store.State, result string) stet.Outcome {
	var text string
	switch _ = json.Unmarshal([]byte(result), &text); {
	case state == store.Completed:
		return stet.Outcome{Body: []byte(result)}
	case result == "":
		return stet.Outcome{Failed: true, Reason: store.ReasonTimedOut}
	case text == stet.ErrCancelled.Error():
		return stet.Outcome{Failed: true, Reason: store.ReasonCancelled}
	}
	return stet.Outcome{Failed: true, Adapter: store.AdapterGo, Status: 500, Type: "text/plain; charset=utf-8", Body: []byte(cmp.Or(text, result))}
}

func settle(t *testing.T, run *stet.Lease, state store.State, result string) {
	t.Helper()
	if err := run.Settle(context.Background(), outcome(state, result)); err != nil {
		t.Fatal(err)
	}
}

// run runs the only operation that waits, to that end.
func (s *service) run(state store.State, result string) {
	s.t.Helper()
	s.end(outcome(state, result))
}

// end is run with any outcome.
func (s *service) end(out stet.Outcome) {
	s.t.Helper()
	if err := s.take().Settle(context.Background(), out); err != nil {
		s.t.Fatal(err)
	}
}

// wantAccepted checks that a reply is a well-formed 202.
func wantAccepted(t *testing.T, r reply, replayed bool) {
	t.Helper()
	var body struct {
		ID        string
		StatusURL string `json:"status_url"`
	}
	err := json.Unmarshal([]byte(r.body), &body)
	location := r.header.Get("Location")
	if r.err != nil || r.status != 202 || err != nil || body.StatusURL != location || !strings.HasSuffix(location, "/"+body.ID) || len(body.ID) != 64 ||
		r.header.Get("Retry-After") == "" || r.header.Get("Content-Type") != "application/json" || r.header.Get("Cache-Control") != "no-store" ||
		!strings.Contains(r.header.Get("Vary"), "Prefer") {
		t.Errorf("%d %v %.300q (%v) is no well-formed 202", r.status, r.header, r.body, r.err)
	}
	if r.replayed() != replayed {
		t.Errorf("the 202 is a replay: %v, want %v", r.replayed(), replayed)
	}
}

// wantOneAcceptance sends 20 first requests with one key over services on one
// store, and checks that they are accepted once.
func wantOneAcceptance(t *testing.T, services ...*service) {
	t.Helper()
	replies := make([]reply, 20)
	var wg sync.WaitGroup
	for i := range replies {
		wg.Go(func() { replies[i] = services[i%len(services)].order("k", `{"item":1}`) })
	}
	wg.Wait()
	firsts := 0
	for _, r := range replies {
		if !r.replayed() {
			firsts++
		}
		wantAccepted(t, r, r.replayed())
		wantSame(t, r, replies[0])
	}
	if firsts != 1 {
		t.Errorf("%d requests got the response of a first one", firsts)
	}
	services[0].run(store.Completed, `{"order":7}`)
	for _, s := range services {
		s.wantNothingDue()
	}
}

// wantSame checks that two replies are the same, byte for byte, but for the date
// and for saying that one is a replay.
func wantSame(t *testing.T, a, b reply) {
	t.Helper()
	a.header, b.header = a.header.Clone(), b.header.Clone()
	for _, name := range []string{"Date", "Idempotent-Replayed", "Idempotency-Expires"} {
		a.header.Del(name)
		b.header.Del(name)
	}
	if a.err != nil || b.err != nil || a.status != b.status || a.body != b.body || len(a.header) != len(b.header) {
		t.Errorf("%d %v %q (%v)\nis not the same as\n%d %v %q (%v)", a.status, a.header, a.body, a.err, b.status, b.header, b.body, b.err)
	}
	for name := range a.header {
		if strings.Join(a.header[name], "|") != strings.Join(b.header[name], "|") {
			t.Errorf("%s: %q is not the same as %q", name, a.header[name], b.header[name])
		}
	}
}
