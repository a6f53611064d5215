package dashboard_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestAbsentWrongAndFormerTokensAre401(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	for _, given := range []string{"", "Bearer", "Bearer ", "Bearer " + token[1:], "Bearer " + token + "x", "Bearer a-former-token-of-32-visible-chars", "Basic " + token, token, "Bearer  " + token} {
		for _, path := range []string{"/v1/about", "/v1/summary", "/v1/operations", f.path("completed"), f.path("completed") + "?result=true&access_token=" + token} {
			a := f.ask("GET", path, "", "Authorization", given)
			if a.status != 401 || a.problem() != "token-required" || !strings.HasPrefix(a.header.Get("WWW-Authenticate"), `Bearer realm="stet"`) {
				t.Errorf("%s with %q: %d %s, %q", path, given, a.status, a.body, a.header.Get("WWW-Authenticate"))
			}
		}
		for _, action := range []string{"resolve", "release", "expire"} {
			if a := f.change("unknown", action, admin.Change{}, "Authorization", given); a.status != 401 {
				t.Errorf("%s with %q: %d", action, given, a.status)
			}
		}
		if a := f.ask("POST", "/v1/digest", `{"scope":"acme"}`, "Authorization", given); a.status != 401 {
			t.Errorf("digest with %q: %d", given, a.status)
		}
	}
	r := httptest.NewRequest("GET", "/v1/about", nil)
	r.Header["Authorization"] = []string{"Bearer " + token, "Bearer " + token}
	if a := f.serve(r); a.status != 401 {
		t.Errorf("two Authorization fields: %d", a.status)
	}
	if f.record("unknown").State != store.Unknown || f.audit.String() != "" {
		t.Error("something was changed")
	}
	if a := f.ask("GET", "/v1/about", "", "Authorization", "bearer "+token); a.status != 200 {
		t.Errorf("the scheme is no matter of case: %d", a.status)
	}
}

func TestPagesOfOtherSitesAreRefused(t *testing.T) {
	for name, o := range map[string]dashboard.Options{"token": {}, "loopback": {Loopback: true}} {
		f := open(t, o, stet.Options{})
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "http://127.0.0.1:9091"}, {"Origin", "null"},
		} {
			if a := f.change("unknown", "release", admin.Change{}, header...); a.status != 403 || a.problem() != "cross-origin" || f.record("unknown").State != store.Unknown {
				t.Errorf("%s, %s: %d %s", name, header, a.status, a.body)
			}
			if a := f.ask("POST", "/v1/digest", `{"scope":"acme"}`, header...); a.status != 403 {
				t.Errorf("%s, %s: %d %s", name, header, a.status, a.body)
			}
		}
		if a := f.ask("POST", "/v1/digest", `{"scope":"acme"}`, "Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:9090"); a.status != 200 {
			t.Errorf("%s: its own page: %d %s", name, a.status, a.body)
		}
		// A form cannot send JSON.
		if a := f.ask("POST", "/v1/digest", `{"scope":"acme"}`, "Content-Type", "text/plain"); a.status != 415 || a.problem() != "json-required" {
			t.Errorf("%s: text: %d %s", name, a.status, a.body)
		}
	}
}

func TestWithoutATokenRequestsCanOnlyRead(t *testing.T) {
	f := open(t, dashboard.Options{Loopback: true}, stet.Options{})
	for _, path := range []string{"/", "/v1/about", "/v1/summary", "/v1/operations", f.path("completed")} {
		if a := f.ask("GET", path, "", "Authorization", ""); a.status != 200 || strings.Contains(a.body, "secret") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := f.ask("GET", f.path("completed")+"?result=true", ""); a.status != 403 || a.problem() != "read-only" || !strings.Contains(a.body, "STET_ADMIN_TOKEN") {
		t.Errorf("a result: %d %s", a.status, a.body)
	}
	for action, key := range map[string]string{"resolve": "unknown", "release": "unknown", "expire": "completed"} {
		before := f.record(key)
		if a := f.change(key, action, admin.Change{}); a.status != 403 || a.problem() != "read-only" || f.record(key).State != before.State || f.record(key).Gone {
			t.Errorf("%s: %d %s", action, a.status, a.body)
		}
	}
	if about := decode[struct{ Changes bool }](t, f.ask("GET", "/v1/about", "")); about.Changes {
		t.Error("about allows changes")
	}
}

// A page of another site may have its own name resolved to this host.
func TestWithoutATokenOnlyThisHostIsAnswered(t *testing.T) {
	f := open(t, dashboard.Options{Loopback: true}, stet.Options{})
	for _, header := range [][]string{
		{"Host", "evil.example"}, {"Host", "evil.example:9090"}, {"Host", "localhost.evil.example"}, {"Host", "127.0.0.1.evil.example"}, {"Host", ""}, {"Host", "10.0.0.7:9090"},
		{"Host", "0.0.0.0:9090"}, {"Remote", "10.0.0.7:5000"}, {"Remote", "[fd00::1]:5000"}, {"Remote", ""},
	} {
		for _, path := range []string{"/", "/v1/operations", f.path("unknown")} {
			if a := f.ask("GET", path, "", header...); a.status != 403 || a.problem() != "host-refused" {
				t.Errorf("%s: %d %s", header, a.status, a.body)
			}
		}
	}
	for _, host := range []string{"127.0.0.1:9090", "localhost:9090", "LOCALHOST", "[::1]:9090", "[::1]", "127.0.0.2"} {
		if a := f.ask("GET", "/v1/about", "", "Host", host); a.status != 200 {
			t.Errorf("%s: %d %s", host, a.status, a.body)
		}
	}
	r := httptest.NewRequest("GET", "http://127.0.0.1/v1/about", nil)
	r.RemoteAddr = "127.0.0.1:5000"
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 9090}))
	if a := f.serve(r); a.status != 403 {
		t.Errorf("at an address of another interface: %d", a.status)
	}
	f = open(t, dashboard.Options{}, stet.Options{})
	if a := f.ask("GET", "/v1/about", "", "Host", "admin.example", "Remote", "10.0.0.7:5000"); a.status != 200 {
		t.Errorf("with the token, from elsewhere: %d %s", a.status, a.body)
	}
}

func TestNewRefusesUnsafeOptionsAndThoseOfAnotherEngine(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Namespace: "v2", Classes: map[string]stet.Policy{"payments": {}}, SweepEvery: -1})
	for want, o := range map[string]dashboard.Options{
		"one of Options.Tokens":   {Namespace: "v2"},
		"and not both":            {Namespace: "v2", Tokens: admins(token), Loopback: true},
		"at least 16":             {Namespace: "v2", Tokens: admins("fifteen-visible")},
		"visible ASCII":           {Namespace: "v2", Tokens: admins("a token with spaces in it")},
		"not the engine's":        {Tokens: admins(token)},
		`has "refunds", which is`: {Namespace: "v2", Tokens: admins(token), Classes: []string{"payments", "refunds"}},
		"token\": 5 bytes; ":      {Namespace: "v2", Tokens: admins("short")},
	} {
		if _, err := dashboard.New(engine, o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "fifteen") || strings.Contains(err.Error(), "spaces in it") {
			t.Errorf("%q is missing from %v", want, err)
		}
	}
	if _, err := dashboard.New(nil, dashboard.Options{Tokens: admins(token)}); err == nil {
		t.Error("no engine, and no error")
	}
	for _, o := range []dashboard.Options{{Namespace: "v2", Loopback: true}, {Namespace: "v2", Tokens: admins(token), Classes: []string{"payments"}}} {
		if _, err := dashboard.New(engine, o); err != nil {
			t.Error(err)
		}
	}
}

func TestEveryResponseForbidsCachesFramesAndForeignScripts(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	for _, a := range []answer{
		f.ask("GET", "/", ""), f.ask("GET", "/page.js", ""), f.ask("GET", "/page.css", ""), f.ask("GET", "/v1/operations", ""), f.ask("GET", "/nowhere", ""),
		f.ask("GET", "/v1/about", "", "Authorization", ""), f.ask("POST", "/v1/digest", "{}", "Sec-Fetch-Site", "cross-site"), f.ask("DELETE", f.path("unknown"), ""),
	} {
		csp := a.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%d: %q is missing from %q", a.status, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%d: %v", a.status, a.header)
		}
	}
}

// sinks are what makes markup or code of text.
var sinks = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|\beval\b|new Function|createContextualFragment|DOMParser|setTimeout\(["'` + "`" + `]|\.href\s*=|\.src\s*=|\.on\w+\s*=`)

func TestPageInsertsOnlyText(t *testing.T) {
	script, err := os.ReadFile("page.js")
	if err != nil {
		t.Fatal(err)
	}
	bulk, err := os.ReadFile("bulk.js")
	if err != nil {
		t.Fatal(err)
	}
	charts, err := os.ReadFile("charts.js")
	if err != nil {
		t.Fatal(err)
	}
	script = slices.Concat(script, bulk, charts)
	if found := sinks.FindAllString(string(script), -1); found != nil {
		t.Errorf("page.js has %q", found)
	}
	page, err := os.ReadFile("page.html")
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`(?i)https?:|//|\son\w+=|style=|<style|<script[^>]*>[^<]`).FindAllString(string(page), -1); len(found) != 0 {
		t.Errorf("page.html has %q", found)
	}
	for _, m := range regexp.MustCompile(`<(input|textarea|select)[^>]*>`).FindAllStringIndex(string(page), -1) {
		if before := string(page[:m[0]]); strings.LastIndex(before, "<label") < strings.LastIndex(before, "</label>") {
			t.Errorf("no label: %s", page[m[0]:m[1]])
		}
	}
	for _, m := range regexp.MustCompile(`\bel\("([a-z-]+)"\)`).FindAllSubmatch(script, -1) {
		if !strings.Contains(string(page), `id="`+string(m[1])+`"`) {
			t.Errorf("page.js wants %s, which page.html does not have", m[1])
		}
	}
}

func TestHostileResultsAreNeverMarkup(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	a := f.ask("GET", f.path("completed")+"?result=true", "")
	if got := decode[admin.Record](t, a); string(got.Result) != secretResult || strings.Contains(a.body, "<") {
		t.Errorf("%q in %s", got.Result, a.body)
	}
	hostile := `<script>alert(1)</script>`
	a = f.change("unknown", "release", admin.Change{Reason: hostile, Actor: hostile})
	if a.status != 200 || strings.Contains(a.body, "<") || a.header.Get("Content-Type") != "application/json" || a.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("got %d %s; want a.status == 200, not strings.Contains(a.body, \"<\"), a.header.Get(\"Content-Type\") == \"application/json\", a.header.Get(\"X-Content-Type-Options\") == \"nosniff\"", a.status, a.body)
	}
}

func TestDisabledAuditIsAnError(t *testing.T) {
	f := open(t, dashboard.Options{Audit: slog.NewJSONHandler(&book{}, &slog.HandlerOptions{Level: slog.LevelError})}, stet.Options{})
	if a := f.change("unknown", "release", admin.Change{}); a.status != 500 || a.problem() != "audit-failed" || f.record("unknown").State != store.Unknown {
		t.Errorf("got %d %s; want a.status == 500, a.problem() == \"audit-failed\", f.record(\"unknown\").State == store.Unknown", a.status, a.body)
	}
}
