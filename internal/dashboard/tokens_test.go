package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/store"
)

const (
	looking  = "a-token-to-look-with-00"
	changing = "a-token-to-change-with0"
)

func twoTokens() dashboard.Options {
	return dashboard.Options{Tokens: []dashboard.Token{{Name: "grafana", Secret: looking}, {Name: "ada", Secret: changing, Change: true}}}
}

func TestTokenWithoutChangeShowsNoResultsAndChangesNothing(t *testing.T) {
	f := open(t, twoTokens(), stet.Options{})
	look := []string{"Authorization", "Bearer " + looking}
	for _, path := range []string{"/v1/about", "/v1/summary", "/v1/operations", f.path("completed")} {
		if a := f.ask("GET", path, "", look...); a.status != 200 || strings.Contains(a.body, secretResult) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if about := decode[struct {
		Changes bool
		Who     string
	}](t, f.ask("GET", "/v1/about", "", look...)); about.Changes || about.Who != "grafana" {
		t.Errorf("%+v", about)
	}
	if a := f.ask("GET", f.path("completed")+"?result=true", "", look...); a.status != 403 || a.problem() != "read-only" || strings.Contains(a.body, "STET_ADMIN_TOKEN") {
		t.Errorf("a result: %d %s", a.status, a.body)
	}
	for _, action := range []string{"resolve", "release", "expire"} {
		if a := f.change("unknown", action, admin.Change{}, look...); a.status != 403 || a.problem() != "read-only" {
			t.Errorf("%s: %d %s", action, a.status, a.body)
		}
	}
	if f.record("unknown").State != store.Unknown || f.audit.String() != "" {
		t.Errorf("something was changed, or shown: %s", f.audit)
	}
}

// The name is that of the token. A client can claim any other name.
func TestAuditNamesTheToken(t *testing.T) {
	f := open(t, twoTokens(), stet.Options{})
	change := []string{"Authorization", "Bearer " + changing}
	if a := f.change("unknown", "release", admin.Change{Actor: "the boss"}, change...); a.status != 200 {
		t.Fatalf("got %d %s; want a.status == 200", a.status, a.body)
	}
	if a := f.change("dead", "release", admin.Change{Actor: " "}, change...); a.status != 400 {
		t.Errorf("no name, said so: %d %s", a.status, a.body)
	}
	entries := f.audit.entries(t)
	for _, e := range entries {
		if e.Who != "ada" || e.Says != "the boss" {
			t.Errorf("got %+v; want e.Who == \"ada\", e.Says == \"the boss\"", e)
		}
	}
	if len(entries) != 2 || strings.Contains(f.audit.String(), changing) {
		t.Errorf("got %s; want len(entries) == 2, not strings.Contains(f.audit.String(), changing)", f.audit)
	}
}

func TestShowingAStoredResultIsWrittenDownFirst(t *testing.T) {
	f := open(t, twoTokens(), stet.Options{})
	change := []string{"Authorization", "Bearer " + changing}
	if a := f.ask("GET", f.path("completed"), "", change...); a.status != 200 || f.audit.String() != "" {
		t.Fatalf("the record alone: %d, %s", a.status, f.audit)
	}
	a := f.ask("GET", f.path("completed")+"?result=true", "", change...)
	if rec := decode[admin.Record](t, a); string(rec.Result) != secretResult {
		t.Fatalf("got %d %s; want string(rec.Result) == secretResult", a.status, a.body)
	}
	entries := f.audit.entries(t)
	if len(entries) != 1 || entries[0].Who != "ada" || entries[0].Action != admin.Show || entries[0].ID != f.engine.ID("acme", "completed").String() || strings.Contains(f.audit.String(), "secret") {
		t.Errorf("%s", f.audit)
	}
	o := twoTokens()
	o.Audit = full{}
	f = open(t, o, stet.Options{})
	if a := f.ask("GET", f.path("completed")+"?result=true", "", change...); a.status != 500 || a.problem() != "audit-failed" || strings.Contains(a.body, "result\":") {
		t.Errorf("what cannot be written down was shown: %d %s", a.status, a.body)
	}
}

// full is an audit that takes nothing.
type full struct{ slog.Handler }

func (full) Enabled(context.Context, slog.Level) bool  { return true }
func (full) Handle(context.Context, slog.Record) error { return errors.New("disk full") }

func TestEqualTokensAreRefused(t *testing.T) {
	for want, tokens := range map[string][]dashboard.Token{
		"two tokens by the name": {{Name: "a", Secret: looking}, {Name: "a", Secret: changing}},
		"are the same":           {{Name: "a", Secret: looking}, {Name: "b", Secret: looking}},
		"name: required":         {{Secret: looking}},
		"one line of text":       {{Name: "a\nb", Secret: looking}},
		"at least 16":            {{Name: "a", Secret: looking[:9]}},
	} {
		if err := dashboard.CheckTokens(tokens); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), looking[:9]) {
			t.Errorf("%q is missing from %v", want, err)
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", twoTokens().Tokens, twoTokens().Tokens, twoTokens().Tokens); strings.Contains(text, looking) || !strings.Contains(text, "grafana") {
		t.Error(text)
	}
}
