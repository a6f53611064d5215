package demo

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAsynchronousStormChargesOnceWithStetAndTwiceWithout(t *testing.T) {
	const payments, kills = 40, 3
	rep, err := Run(t.Context(), Config{Payments: payments, Attempts: 5, Kills: kills, Async: true, Service: as(t, "service")})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d, %.1f s\nwithout %+v\nwith    %+v", rep.Seed, rep.Seconds, rep.Without, rep.With)
	if !rep.Async || len(rep.Violations) > 0 {
		t.Errorf("async %v, violations: %q", rep.Async, rep.Violations)
	}
	if r := rep.With; r.ExecutedOnce != payments || r.Charges != payments || r.Lost != 0 || r.Unknown != 0 || r.Differing != 0 || r.Replayed == 0 {
		t.Errorf("with stet: %+v", r)
	}
	if r := rep.Without; r.ExecutedTwice == 0 || r.Differing == 0 {
		t.Errorf("the storm did no harm without stet: %+v", r)
	}
	for name, r := range map[string]Result{"with": rep.With, "without": rep.Without} {
		if r.Accepted < payments || r.Kills != kills || r.InFlightAtKills < kills {
			t.Errorf("%s stet it was not much of a storm: %+v", name, r)
		}
	}
}

// The storm itself must be able to fail stet.
func TestAsynchronousStormFindsAServiceThatIsNotProtected(t *testing.T) {
	rep, err := Run(t.Context(), Config{Payments: 10, Attempts: 5, Kills: 1, Async: true, Service: as(t, "liar")})
	if err != nil {
		t.Fatal(err)
	}
	if rep.With.ExecutedTwice == 0 || rep.With.Differing == 0 || len(rep.Violations) < 2 {
		t.Errorf("not found: %+v, violations %q", rep.With, rep.Violations)
	}
}

func TestPaymentThatWasAcceptedAtTwoPlacesIsDiffering(t *testing.T) {
	p := payment{"order-1", 1}
	o := observed{payment: p, acks: map[string]int{`{"charge":1,"payment":"order-1","amount":1}`: 2}, urls: map[string]int{"/a": 1, "/b": 1}}
	if r := account([]observed{o}, []charge{{ID: 1, Payment: "order-1", Amount: 1}}); r.Differing != 1 || r.Lost != 0 {
		t.Errorf("got %+v; want r.Differing == 1, r.Lost == 0", r)
	}
}

// What a status resource says is the client's last word, and a 404 sends it back.
func TestClientFollowsWhatWasAccepted(t *testing.T) {
	for name, c := range map[string]struct {
		says     []string
		definite bool
		judged   func(observed) bool
	}{
		"completed":  {[]string{`{"state":"running"}`, `{"state":"completed","outcome":{"result":{"charge":1}}}`}, true, func(o observed) bool { return o.acks[`{"charge":1}`] == 1 }},
		"failed":     {[]string{`{"state":"accepted"}`, `{"state":"failed"}`}, true, func(o observed) bool { return o.refused }},
		"unknown":    {[]string{`{"state":"unknown"}`, ``}, false, func(o observed) bool { return o.parked && len(o.acks) == 0 }},
		"not known":  {[]string{``}, false, func(o observed) bool { return len(o.acks) == 0 && !o.refused }},
		"unreadable": {[]string{`no JSON`, ``}, false, func(o observed) bool { return len(o.acks) == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			says := c.says
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				said := says[0]
				if says = says[1:]; said == "" {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = w.Write([]byte(said))
			}))
			defer srv.Close()
			crowd := &crowd{http: newHTTPClient(), changed: func() {}}
			defer crowd.http.CloseIdleConnections()
			in := newIntent(payment{"order-1", 1})
			if definite := crowd.follow(t.Context(), in, srv.URL, rand.New(rand.NewPCG(1, 1))); definite != c.definite || !c.judged(in.told) {
				t.Errorf("definite %v, told %+v", definite, in.told)
			}
		})
	}
}

func TestReportOfAnAsynchronousStormTellsOf202(t *testing.T) {
	var b strings.Builder
	r := Report{Async: true, With: Result{Accepted: 17, Operations: 3}}
	if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "accepted (202)") || !strings.Contains(b.String(), "URL and outcome") {
		t.Error(b.String(), err)
	}
}

func TestProxyCannotBeBeforeAnAsynchronousService(t *testing.T) {
	c := Config{Payments: 1, Attempts: 1, Async: true, Service: []string{"x"}, Proxy: []string{"x"}}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "--async") {
		t.Error(err)
	}
}
