package dashboard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

func TestListFiltersAndPages(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	scope, other := store.DigestScope("", "acme").String(), store.DigestScope("", "other").String()
	for query, want := range map[string]int{
		"": 6, "?state=unknown": 1, "?state=completed,failed": 2, "?state=completed&state=failed": 2, "?scope_digest=" + scope: 6, "?scope_digest=" + other: 0,
		"?older=1m": 6, "?newer=1m": 0, "?limit=4": 4, "?offset=4": 2, "?offset=9": 0, "?state=dead": 1, "?state=dead,unknown": 2, "?state=running": 2,
		"?class=payments": 0, "?name=POST": 0, "?ref=7": 0, "?scope_label=Acme": 0, "?id=" + f.engine.ID("acme", "dead").String(): 1, "?state=unknown&id=" + f.engine.ID("acme", "dead").String(): 0, "?state=running&older=1m&scope_digest=" + scope: 2,
	} {
		a := f.ask("GET", "/v1/operations"+query, "")
		page := decode[admin.Page](t, a)
		if len(page.Records) != want || strings.Contains(a.body, "secret") || strings.Contains(a.body, "acme") {
			t.Errorf("%s: %d records, want %d: %s", query, len(page.Records), want, a.body)
		}
	}
	var seen []string
	for offset := 0; offset < 6; offset += 2 {
		page := decode[admin.Page](t, f.ask("GET", "/v1/operations?sort=-state&limit=2&offset="+strconv.Itoa(offset), ""))
		for _, rec := range page.Records {
			seen = append(seen, rec.State)
		}
		if page.Total != 6 || !page.Complete || page.Next != "" {
			t.Errorf("got %+v; want a complete list of 6", page)
		}
	}
	if want := []string{"unknown", "running", "running", "retryable", "failed", "completed"}; !slices.Equal(seen, want) {
		t.Errorf("over all pages %v, want %v", seen, want)
	}
}

func TestDigestTakesScopeAndKeyInTheBody(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	got := decode[struct {
		Scope string `json:"scope_digest"`
		ID    string
	}](t, f.ask("POST", "/v1/digest", `{"scope":"acme","key":"unknown"}`))
	rec := decode[admin.Record](t, f.ask("GET", "/v1/operations/"+got.ID, ""))
	if rec.State != "unknown" || rec.Scope != got.Scope || rec.ID != f.engine.ID("acme", "unknown").String() {
		t.Errorf("got %+v, %+v; want rec.State == \"unknown\", rec.Scope == got.Scope, rec.ID == f.engine.ID(\"acme\", \"unknown\").String()", got, rec)
	}
	if a := f.ask("GET", f.path("never"), ""); a.status != 404 || a.problem() != "not-found" {
		t.Errorf("got %d %s; want a.status == 404, a.problem() == \"not-found\"", a.status, a.body)
	}
	f = open(t, dashboard.Options{Namespace: "v2"}, stet.Options{Namespace: "v2"})
	if a := f.ask("POST", "/v1/digest", `{"scope":"acme","key":"unknown"}`); !strings.Contains(a.body, f.engine.ID("acme", "unknown").String()) {
		t.Errorf("the namespace is left out: %s", a.body)
	}
}

func TestSummaryCountsUnsettledOperations(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	for _, key := range []string{"a", "b"} {
		if _, err := f.engine.Accept(t.Context(), op(key), stet.Work{Name: "pay"}); err != nil {
			t.Fatal(err)
		}
	}
	got := decode[map[string]any](t, f.ask("GET", "/v1/summary", ""))
	for name, want := range map[string]any{"running": 1.0, "dead": 1.0, "unknown": 1.0, "retryable": 1.0, "complete": true, "accepted": 2.0, "accepted_complete": true} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if oldest, err := time.Parse(time.RFC3339, got["oldest_unresolved"].(string)); err != nil || time.Since(oldest) < 30*time.Minute {
		t.Errorf("got %v, %v; want time.Since(oldest) >= 30*time.Minute, no error", oldest, err)
	}
}

// However many operations wait for a worker, those for an operator are counted exactly.
// In a bubble, because a summary ends after some seconds.
func TestBacklogHidesNothingInTheSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, dashboard.Options{}, stet.Options{})
		const most = 8 * store.MaxBrowse
		for i := range most + 1 {
			if _, err := f.engine.Accept(t.Context(), op("backlog "+strconv.Itoa(i)), stet.Work{Name: "pay"}); err != nil {
				t.Fatal(err)
			}
		}
		got := decode[map[string]any](t, f.ask("GET", "/v1/summary", ""))
		for name, want := range map[string]any{"unknown": 1.0, "dead": 1.0, "complete": true, "accepted": float64(most), "accepted_complete": false} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	})
}

func TestResultIsShownOnlyWhenAskedFor(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	if rec := decode[admin.Record](t, f.ask("GET", f.path("completed"), "")); rec.Result != nil {
		t.Errorf("got %q; want rec.Result == nil", rec.Result)
	}
	if rec := decode[admin.Record](t, f.ask("GET", f.path("completed")+"?result=true", "")); string(rec.Result) != secretResult {
		t.Errorf("got %q; want string(rec.Result) == secretResult", rec.Result)
	}
	for _, query := range []string{"?result=false", "?result=1", "?body=true", "?result=true&result=true"} {
		if a := f.ask("GET", f.path("completed")+query, ""); a.status != 400 {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
}

// hidden is a store that keeps no work, so that the engine cannot look for it.
type hidden struct {
	store.Store
	store.Browser
}

func TestEncryptedResultIsShownWhereTheEngineHasTheKey(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k1", Secret: bytes.Repeat([]byte{7}, 32)}}}})
	if rec := decode[admin.Record](t, f.ask("GET", f.path("completed")+"?result=true", "")); string(rec.Result) != secretResult {
		t.Errorf("got %q; want string(rec.Result) == secretResult", rec.Result)
	}
	for name, store := range map[string]store.Store{"without the key": f.store, "by a store without work": hidden{f.store, f.store}} {
		engine := stettest.Engine(t, store, stet.Options{SweepEvery: -1, Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k2", Secret: bytes.Repeat([]byte{8}, 32)}}}})
		var err error
		if f.handler, err = dashboard.New(engine, dashboard.Options{Tokens: admins(token)}); err != nil {
			t.Fatal(err)
		}
		if a := f.ask("GET", f.path("completed")+"?result=true", ""); a.status != 500 || a.problem() != "result-unreadable" || !strings.Contains(a.body, "encrypted") || strings.Contains(a.body, "secret") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

func TestReleasedWorkWaitsForAWorkerAgain(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	if _, err := f.engine.Accept(t.Context(), op("work"), stet.Work{Name: "pay", Payload: []byte("canary")}); err != nil {
		t.Fatal(err)
	}
	if page := decode[admin.Page](t, f.ask("GET", "/v1/operations?state=accepted", "")); len(page.Records) != 1 || page.Records[0].State != "accepted" {
		t.Errorf("got %+v; want len(page.Records) == 1, page.Records[0].State == \"accepted\"", page)
	}
	if a := f.change("work", "resolve", admin.Change{As: "completed"}); a.status != 409 || a.problem() != "not-possible" || f.record("work").State != store.Accepted {
		t.Errorf("an operation that was never begun: %d %s", a.status, a.body)
	}
	if _, err := f.store.Take(t.Context(), store.TakeRequest{ID: f.engine.ID("acme", "work"), Owner: store.NewOwner(), Lease: time.Minute}); err != nil {
		t.Fatal(err)
	}
	f.now.add(2 * time.Minute)
	e := decode[admin.Entry](t, f.change("work", "release", admin.Change{}))
	if e.To != "accepted" || f.record("work").State != store.Accepted {
		t.Errorf("got %+v, %v; want e.To == \"accepted\", f.record(\"work\").State == store.Accepted", e, f.record("work").State)
	}
}

func TestChangesLeadToTheirStatesAndMayBeRepeated(t *testing.T) {
	for _, tc := range []struct {
		key, action, as string
		want            store.State
		gone            bool
	}{
		{"unknown", "resolve", "completed", store.Completed, true}, {"unknown", "resolve", "failed", store.Failed, true},
		{"unknown", "resolve", "not-executed", store.Retryable, false}, {"unknown", "release", "", store.Retryable, false},
		{"dead", "resolve", "failed", store.Failed, true}, {"dead", "release", "", store.Retryable, false},
		{"completed", "expire", "", store.Completed, true}, {"failed", "expire", "", store.Failed, true},
	} {
		f := open(t, dashboard.Options{}, stet.Options{})
		before := f.record(tc.key)
		for n := range 2 { // the reply to the first may have been lost
			a := f.change(tc.key, tc.action, admin.Change{As: tc.as, Fence: before.Fence})
			e := decode[admin.Entry](t, a)
			if rec := f.record(tc.key); rec.State != tc.want || rec.Gone != tc.gone || e.Result != admin.Done || n == 0 && e.From.State != before.State.String() {
				t.Errorf("%+v: %v, %+v", tc, rec.State, e)
			}
		}
	}
}

func TestRetriesGetTheResponseByHand(t *testing.T) {
	for name, eo := range map[string]stet.Options{
		"plain":     {},
		"encrypted": {Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k1", Secret: bytes.Repeat([]byte{7}, 32)}}}},
	} {
		eo.Classes = map[string]stet.Policy{"payments": {Retention: store.Retention{Result: 5 * time.Hour, Tombstone: 6 * time.Hour}}}
		f := open(t, dashboard.Options{Classes: []string{"payments"}}, eo)
		response := &admin.Response{Status: 201, Header: http.Header{"content-type": {"text/plain"}, "connection": {"close"}}, Body: []byte("charge 7")}
		if a := f.change("unknown", "resolve", admin.Change{As: "completed", Class: "payments", Response: response}); a.status != 200 {
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
		if rec := f.record("unknown"); rec.ExpiresAt.Sub(f.now.get()) != 5*time.Hour || rec.ForgetAt.Sub(f.now.get()) != 6*time.Hour {
			t.Errorf("%s: kept until %v and %v, and not as its class", name, rec.ExpiresAt, rec.ForgetAt)
		}
		want, err := stethttp.Outcome(201, http.Header{"Content-Type": {"text/plain"}}, []byte("charge 7"))
		if err != nil {
			t.Fatal(err)
		}
		run, err := f.engine.Begin(t.Context(), op("unknown"))
		if err != nil || !run.Replayed() || !bytes.Equal(run.Outcome().Body, want.Body) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStaleFenceIs409WithTheCurrentRecord(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	shown := f.record("unknown")
	if a := f.change("unknown", "release", admin.Change{}); a.status != 200 {
		t.Fatal(a.body)
	}
	run, err := f.engine.Begin(t.Context(), op("unknown")) // the next retry runs it
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Settle(t.Context(), stet.Outcome{Body: []byte("ran again")}); err != nil {
		t.Fatal(err)
	}
	for action, as := range map[string]string{"resolve": "failed", "release": "", "expire": ""} {
		a := f.change("unknown", action, admin.Change{As: as, Fence: shown.Fence})
		var doc struct{ Now *admin.Record }
		if err := json.Unmarshal([]byte(a.body), &doc); err != nil || a.status != 409 || a.problem() != "record-changed" || doc.Now == nil ||
			doc.Now.State != "completed" || doc.Now.Fence <= shown.Fence || doc.Now.Result != nil {
			t.Errorf("%s: %d %s", action, a.status, a.body)
		}
	}
	if rec := f.record("unknown"); rec.State != store.Completed || rec.Gone {
		t.Errorf("a stale fence has changed it: %+v", rec)
	}
	// A resolution after another operator has resolved the operation, under the same fence.
	dead := f.record("dead")
	f.change("dead", "resolve", admin.Change{As: "completed"})
	if a := f.change("dead", "release", admin.Change{Fence: dead.Fence}); a.status != 409 || a.problem() != "not-possible" || !strings.Contains(a.body, `"now"`) || f.record("dead").State != store.Completed {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestLiveRunIsNotChangedByHand(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	for _, action := range []string{"resolve", "release"} {
		as := map[string]string{"resolve": "failed"}[action]
		a := f.change("running", action, admin.Change{As: as})
		if a.status != 409 || a.problem() != "lease-alive" || a.header.Get("Retry-After") == "" || f.record("running").State != store.Running {
			t.Errorf("%s: %d %s", action, a.status, a.body)
		}
	}
	if a := f.change("running", "expire", admin.Change{}); a.status != 409 || a.problem() != "not-possible" {
		t.Errorf("expire: %d %s", a.status, a.body)
	}
	if a := f.change("never", "release", admin.Change{Fence: 1}); a.status != 404 {
		t.Errorf("a missing operation: %d %s", a.status, a.body)
	}
}

func TestDryRunChangesNothingAndIsWrittenDown(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	for key, action := range map[string]string{"unknown": "release", "dead": "release", "completed": "expire"} {
		before := f.record(key)
		e := decode[admin.Entry](t, f.change(key, action, admin.Change{DryRun: true}))
		if now := f.record(key); now.State != before.State || now.Gone || e.Result != admin.DryRun {
			t.Errorf("%s: %v, %+v", key, now.State, e)
		}
	}
	if a := f.change("running", "release", admin.Change{DryRun: true}); a.status != 409 {
		t.Errorf("what would be refused: %d %s", a.status, a.body)
	}
	if n := len(f.audit.entries(t)); n != 3 {
		t.Errorf("%d lines in the audit", n)
	}
}

func TestChangesAreWrittenDownBeforeAndAfter(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	fence := f.record("unknown").Fence
	f.change("unknown", "resolve", admin.Change{As: "failed", Reason: "the processor's books, case 7", Actor: "ada"})
	f.change("running", "release", admin.Change{})
	entries := f.audit.entries(t)
	if len(entries) != 4 {
		t.Fatalf("got %s; want len(entries) == 4", f.audit)
	}
	for i, want := range []string{admin.Begun, admin.Done, admin.Begun, admin.Failed} {
		if e := entries[i]; e.Result != want || e.Who != dashboard.DefaultTokenName || e.Says != "ada" || e.ID == "" || time.Since(e.At).Abs() > time.Minute || !strings.Contains(e.Via, "127.0.0.1:5000") || (e.Error != "") != (want == admin.Failed) {
			t.Errorf("%s: %+v", want, e)
		}
	}
	if e := entries[1]; e.Why != "the processor's books, case 7" || e.Action != "resolve" || e.From != (admin.Stood{State: "unknown", Fence: fence, Attempt: 1}) || e.To != "failed" || e.Store != "memory" {
		t.Errorf("%+v", e)
	}
}

func TestChangeThatCannotBeWrittenDownIsNotMade(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	f.audit.full = true
	for key, action := range map[string]string{"unknown": "release", "completed": "expire"} {
		before := f.record(key)
		if a := f.change(key, action, admin.Change{}); a.status != 500 || a.problem() != "audit-failed" || f.record(key).State != before.State || f.record(key).Gone {
			t.Errorf("%s: %d %s", key, a.status, a.body)
		}
	}
}

func TestChangeContinuesAfterItsCallerHasLeft(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	ctx, leave := context.WithCancel(t.Context())
	leave()
	content := `{"fence":"` + f.fence("unknown") + `","reason":"r","actor":"ada"}`
	r := httptest.NewRequestWithContext(ctx, "POST", f.path("unknown")+"/release", strings.NewReader(content))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	f.serve(r)
	entries := f.audit.entries(t)
	if f.record("unknown").State != store.Retryable || len(entries) != 2 || entries[1].Result != admin.Done {
		t.Errorf("%v: %s", f.record("unknown").State, f.audit)
	}
}

func (f *office) fence(key string) string {
	b, _ := json.Marshal(admin.NewRecord(f.record(key)))
	var r struct{ Fence string }
	_ = json.Unmarshal(b, &r)
	return r.Fence
}

// broken is a store whose error has a secret.
type broken struct{ store.Store }

func (broken) Read(context.Context, store.ID) (store.Record, error) {
	return store.Record{}, errors.New("dial db-7.internal: refused")
}

func TestNeitherKeysNorBodiesAreLogged(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	const canary = "canary-4242"
	run, err := f.engine.Begin(t.Context(), stet.Op{Scope: canary + "-scope", Key: canary + "-key", Fingerprint: stet.NewFingerprint([]byte(canary))})
	if err != nil || run.Settle(t.Context(), stet.Outcome{Body: []byte(canary + "-result")}) != nil {
		t.Fatal(err)
	}
	id := f.engine.ID(canary+"-scope", canary+"-key").String()
	f.ask("POST", "/v1/digest", `{"scope":"`+canary+`-scope","key":"`+canary+`-key"}`)
	f.ask("POST", "/v1/digest", `{"scope":"`+canary+`","nonsense":"`+canary+`"}`)
	f.ask("GET", "/v1/operations/"+id+"?result=true", "")
	response := &admin.Response{Status: 201, Header: http.Header{"X-Canary": {canary}}, Body: []byte(canary)}
	answers := []answer{
		f.change("unknown", "resolve", admin.Change{As: "completed", Response: response}),
		f.change("unknown", "resolve", admin.Change{As: "failed", Response: response}),
		f.change("running", "resolve", admin.Change{As: "failed", Response: response}),
		f.change("dead", "resolve", admin.Change{As: "completed", Response: &admin.Response{Status: 42, Body: []byte(canary)}}),
		f.ask("POST", "/v1/operations/"+id+"/expire", `{"fence":"1","reason":"r","actor":"ada","response":{"body":"`+canary+`"}}`),
		f.ask("POST", "/v1/operations/"+id+"/expire", `{"`+canary+`":1}`),
	}
	for _, a := range answers {
		if strings.Contains(a.body, canary) {
			t.Errorf("got %d %s; want not strings.Contains(a.body, canary)", a.status, a.body)
		}
	}
	for name, log := range map[string]*book{"audit": f.audit, "log": f.log} {
		if strings.Contains(log.String(), canary) || strings.Contains(log.String(), token) {
			t.Errorf("%s: %s", name, log)
		}
	}
	if len(f.audit.entries(t)) != 7 { // with the result that was shown
		t.Errorf("%s", f.audit)
	}
}

func TestStoreThatDoesNotAnswerIs503AndNamesNoHost(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	engine := stettest.Engine(t, broken{f.store}, stet.Options{SweepEvery: -1})
	f.engine = engine
	var err error
	if f.handler, err = dashboard.New(engine, dashboard.Options{Tokens: admins(token), ErrorLog: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	for _, a := range []answer{f.ask("GET", f.path("unknown"), ""), f.change("unknown", "release", admin.Change{})} {
		if a.status != 503 || a.problem() != "store-unavailable" || strings.Contains(a.body, "db-7") {
			t.Errorf("got %d %s; want a.status == 503, a.problem() == \"store-unavailable\", not strings.Contains(a.body, \"db-7\")", a.status, a.body)
		}
	}
	if a := f.ask("GET", "/v1/operations", ""); a.status != 501 || a.problem() != "not-supported" {
		t.Errorf("a store that cannot be looked through: %d %s", a.status, a.body)
	}
}

func TestUnacceptableRequestsAreProblems(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	path := f.path("unknown") + "/"
	long := strings.Repeat("x", 1001)
	for _, tc := range []struct {
		method, path, content string
		status                int
		problem, says         string
	}{
		{"GET", "/v1/operations?state=gone", "", 400, "invalid", "none of running"},
		{"GET", "/v1/operations?limit=0", "", 400, "invalid", "1 to 10000"},
		{"GET", "/v1/operations?limit=10001", "", 400, "invalid", "1 to 10000"},
		{"GET", "/v1/operations?older=-1m", "", 400, "invalid", "duration"},
		{"GET", "/v1/operations?older=1m&older=2m", "", 400, "invalid", "more than once"},
		{"GET", "/v1/operations?scope_digest=12", "", 400, "invalid", "64"},
		{"GET", "/v1/operations?offset=-1", "", 400, "invalid", "negative"},
		{"GET", "/v1/operations?sort=age", "", 400, "invalid", "none of attempt"},
		{"GET", "/v1/operations?scope=acme", "", 400, "invalid", "there are only"},
		{"GET", "/v1/operations?after=%00", "", 400, "invalid", ""},
		{"GET", "/v1/operations/12", "", 400, "invalid", "64"},
		{"GET", "/v1/nothing", "", 404, "no-such-page", ""},
		{"GET", path + "release", "", 405, "method-not-allowed", "POST"},
		{"DELETE", f.path("unknown"), "", 405, "method-not-allowed", "GET"},
		{"POST", path + "delete", "{}", 404, "no-such-page", ""},
		{"POST", "/v1/digest", `{"key":"k"}`, 400, "invalid", "scope is required"},
		{"POST", path + "release", "", 400, "invalid", "one JSON object"},
		{"POST", path + "release", "null []", 400, "invalid", "one JSON object"},
		{"POST", path + "release", `{"fence":1,"reason":"r","actor":"a"}`, 400, "invalid", "one JSON object"},
		{"POST", path + "release", `{"fence":"1","reason":"r","actor":"a","force":true}`, 400, "invalid", "one JSON object"},
		{"POST", path + "release", `{"fence":"1","actor":"a"}`, 400, "invalid", "reason: required"},
		{"POST", path + "release", `{"fence":"1","reason":" ","actor":"a"}`, 400, "invalid", "reason: required"},
		{"POST", path + "release", `{"fence":"1","reason":"r","actor":"a\nb"}`, 400, "invalid", "actor: it must be one line"},
		{"POST", path + "release", `{"fence":"1","reason":"` + long + `","actor":"a"}`, 400, "invalid", "at most 1000"},
		{"POST", path + "release", `{"fence":"1","reason":"a\nforged line","actor":"a"}`, 400, "invalid", "one line"},
		{"POST", path + "release", `{"fence":"1","reason":"r","actor":"a","as":"failed"}`, 400, "invalid", "only resolve"},
		{"POST", path + "resolve", `{"fence":"1","reason":"r","actor":"a"}`, 400, "invalid", "none of completed"},
		{"POST", path + "resolve", `{"fence":"1","reason":"r","actor":"a","as":"not-executed","response":{"status":200}}`, 400, "invalid", "no response"},
		{"POST", path + "resolve", `{"fence":"1","reason":"r","actor":"a","as":"failed","response":{"status":42}}`, 400, "invalid", "42"},
		{"POST", path + "resolve", `{"fence":"1","reason":"r","actor":"a","as":"failed","class":"nope"}`, 400, "invalid", "class"},
		{"POST", path + "resolve", `{"fence":"1","reason":"r","actor":"a","as":"failed","response":{"status":200,"body":"` + strings.Repeat("AAAA", 350_000) + `"}}`, 413, "too-large", "1048576"},
	} {
		a := f.ask(tc.method, tc.path, tc.content)
		if a.status != tc.status || a.problem() != tc.problem || !strings.Contains(a.body, tc.says) {
			t.Errorf("%s %s %.80s: %d %s", tc.method, tc.path, tc.content, a.status, a.body)
		}
		if tc.status == 405 && a.header.Get("Allow") != tc.says {
			t.Errorf("%s %s: Allow is %q", tc.method, tc.path, a.header.Get("Allow"))
		}
	}
	if f.record("unknown").State != store.Unknown || f.audit.String() != "" {
		t.Errorf("something was changed: %s", f.audit)
	}
}

func TestReadmeDescribesEveryPathAndProblem(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("dashboard.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range admin.Conditions {
		if !bytes.Contains(text, fmt.Appendf(nil, "\n### %s\n\n%d. ", c.Name, c.Status)) {
			t.Errorf("%s is not described with its status, %d", c.Name, c.Status)
		}
	}
	if n := bytes.Count(text, []byte("\n### ")); n != len(admin.Conditions) {
		t.Errorf("%d problems are described, and there are %d", n, len(admin.Conditions))
	}
	for line := range bytes.Lines(source) {
		if _, path, ok := bytes.Cut(line, []byte(`/v1/`)); ok {
			path, _, _ = bytes.Cut(path, []byte(`"`))
			if !bytes.Contains(text, append([]byte("v1/"), path...)) {
				t.Errorf("v1/%s is not described", path)
			}
		}
	}
}
