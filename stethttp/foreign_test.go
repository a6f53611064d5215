package stethttp_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// stored settles the operation of the order k with out, as a program does that calls the
// engine itself.
func (s *service) stored(out stet.Outcome) (id store.ID) {
	s.t.Helper()
	var op stet.Op
	start(s.t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		run := stet.FromContext(r.Context())
		op = stet.Op{Scope: run.Op().Scope, Key: run.Op().Key, Fingerprint: run.Op().Fingerprint}
		w.WriteHeader(http.StatusOK)
	}}).order("k", "{}")
	run, err := s.engine.Begin(context.Background(), op)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := run.Settle(context.Background(), out); err != nil {
		s.t.Fatal(err)
	}
	return run.ID()
}

var (
	done       = []byte(`"done"`)
	unreadable = reply{status: 500, body: "result-unreadable"}
)

// foreign are outcomes with their responses, or the name of a problem.
var foreign = map[string]struct {
	out  stet.Outcome
	want reply
}{
	"http, 42":                  {stet.Outcome{Adapter: store.AdapterHTTP, Status: 42, Body: done}, unreadable},
	"http, none":                {stet.Outcome{Adapter: store.AdapterHTTP, Body: done}, unreadable},
	"http, 103":                 {stet.Outcome{Adapter: store.AdapterHTTP, Status: 103}, unreadable},
	"http, failed, 42":          {stet.Outcome{Adapter: store.AdapterHTTP, Status: 42, Failed: true}, unreadable},
	"http, 204 with a body":     {stet.Outcome{Adapter: store.AdapterHTTP, Status: 204, Body: done}, reply{status: 204}},
	"http, wrong length":        {stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Body: done, Header: lengthOf("2")}, unreadable},
	"sql, 42":                   {stet.Outcome{Adapter: store.AdapterSQL, Status: 42, Body: done}, unreadable},
	"sql, none":                 {stet.Outcome{Adapter: store.AdapterSQL, Body: done}, reply{status: 200, body: `"done"`}},
	"go, 42":                    {stet.Outcome{Adapter: store.AdapterGo, Status: 42, Body: done}, reply{status: 200, body: `"done"`}},
	"go, 101":                   {stet.Outcome{Adapter: store.AdapterGo, Status: 101, Body: done}, reply{status: 200, body: `"done"`}},
	"go, 304 with a body":       {stet.Outcome{Adapter: store.AdapterGo, Status: 304, Body: done}, reply{status: 200, body: `"done"`}},
	"go, 42 without a body":     {stet.Outcome{Adapter: store.AdapterGo, Status: 42}, reply{status: 204}},
	"go, 202 without a body":    {stet.Outcome{Adapter: store.AdapterGo, Status: 202}, reply{status: 202}},
	"go, failed, 42":            {stet.Outcome{Adapter: store.AdapterGo, Failed: true, Status: 42, Body: done}, reply{status: 500, body: "operation-failed"}},
	"engine, 42":                {stet.Outcome{Status: 42, Body: done}, reply{status: 200, body: `"done"`}},
	"engine, fields of its own": {stet.Outcome{Status: 200, Body: done, Header: odd}, reply{status: 200, body: `"done"`}},
}

// TestOutcomeOfAnotherAdapterIsSendable: net/http never gets a response at which it panics
// at.
func TestOutcomeOfAnotherAdapterIsSendable(t *testing.T) {
	for name, test := range foreign {
		t.Run(name, func(t *testing.T) {
			s := start(t, setup{})
			id := s.stored(test.out)
			check := func(where string, r reply) {
				t.Helper()
				got := r.body
				if r.status >= 400 {
					got = r.name()
				}
				if r.err != nil || r.status != test.want.status || got != test.want.body {
					t.Errorf("%s: %d %q, %v; want %d %q", where, r.status, r.body, r.err, test.want.status, test.want.body)
				}
				executed := stet.Executed
				if test.out.Failed {
					executed = stet.MayHaveExecuted
				}
				if r.name() == "result-unreadable" && r.problem().Execution != executed.String() {
					t.Errorf("%s: executed: %q; want %v", where, r.problem().Execution, executed)
				}
			}
			r := s.order("k", "{}")
			check("replay", r)
			for _, name := range slices.Sorted(maps.Keys(r.header)) {
				if name == "Te" || name == "Transfer-Encoding" || name == "X-Line" {
					t.Errorf("the header has %s: %q", name, r.header[name])
				}
			}
			if named(test.out.Header, "x-fine") && r.header.Get("X-Fine") != "yes" {
				t.Errorf("the header lacks X-Fine: %v", r.header)
			}
			accepting := start(t, setup{store: s.store, async: &stethttp.AsyncOptions{}})
			check("accepted", accepting.order("k", "{}"))
			status := accepting.do(accepting.request(http.MethodGet, statusURL+id.String(), "", ""))
			switch {
			case test.want.body == "result-unreadable":
				wantProblem(t, status, 500, "result-unreadable")
			case status.told(t).Outcome == nil || status.told(t).Outcome.Status != test.want.status:
				t.Errorf("its status: %d %s; want one with %d", status.status, status.body, test.want.status)
			}
			code, _, content, err := stethttp.StoredResponse(test.out)
			switch {
			case test.want.body == "result-unreadable":
				if stet.KindOf(err) != stet.KindDamaged || stet.ExecutionOf(err) == stet.NotExecuted {
					t.Errorf("StoredResponse: %v", err)
				}
			case err != nil || code != test.want.status || code < 400 && string(content) != test.want.body:
				t.Errorf("StoredResponse: %d %q, %v", code, content, err)
			}
			s.wantRuns(0)
		})
	}
}

func lengthOf(n string) []store.Field {
	return []store.Field{{Name: "Content-Length", Values: []string{n}}}
}

// odd are fields that HTTP does not have, or that are another's to write.
var odd = []store.Field{
	{Name: "Content-Length", Values: []string{"1"}}, {Name: "Te", Values: []string{"x"}}, {Name: "Transfer-Encoding", Values: []string{"chunked"}},
	{Name: "X-Line", Values: []string{"a\r\nb: c"}}, {Name: "a b", Values: []string{"1"}}, {Name: "x-fine", Values: []string{"yes"}},
}

func named(fields []store.Field, name string) bool {
	return slices.ContainsFunc(fields, func(f store.Field) bool { return f.Name == name })
}
