package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

const adminToken = "a-token-of-24-visible-ch"

// remote is an admin API over a counter's store. It records requests.
type remote struct {
	url   string
	audit bytes.Buffer // one request at a time writes to it

	mu   sync.Mutex
	sent string
}

func serveAdmin(t *testing.T, d *shop) *remote {
	t.Helper()
	s, err := sqlite.Open(t.Context(), d.path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := stet.New(s, stet.Options{SweepEvery: -1, Classes: map[string]stet.Policy{"payments": {}}})
	if err != nil {
		t.Fatal(err)
	}
	r := &remote{}
	h, err := dashboard.New(engine, dashboard.Options{Tokens: []dashboard.Token{{Name: dashboard.DefaultTokenName, Secret: adminToken, Change: true}}, Audit: slog.NewJSONHandler(&r.audit, nil)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(bytes.NewReader(body))
		r.mu.Lock()
		r.sent += req.URL.String() + "\n" + string(body) + "\n"
		r.mu.Unlock()
		h.ServeHTTP(w, req)
	}))
	r.url = server.URL
	t.Cleanup(func() {
		server.Close()
		_ = engine.Close()
		_ = s.Close()
	})
	t.Setenv(adminVariable, adminToken)
	return r
}

// run runs a command at the admin API.
func (r *remote) run(t *testing.T, stdin, args string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), append([]string{"keys", "--admin", r.url}, strings.Fields(args)...), strings.NewReader(stdin), &out, &errs)
	return status, out.String(), errs.String()
}

func TestKeysShowTheSameThroughTheAdminAPI(t *testing.T) {
	d := newShop(t)
	r := serveAdmin(t, d)
	id := store.Digest("", "acme", "completed").String()
	for _, args := range []string{
		"ls -o json --state completed,failed,retryable,unknown", "ls --scope acme --state unknown", "ls -o json --limit 2 --state completed,failed", "ls --newer 1ms",
		"get completed --scope acme -o json --body", "get --id " + id, "get never --scope acme", "get --id 12", "get unknown",
		"release running --scope acme --reason r --yes", "expire unknown --scope acme --reason r --yes", "resolve completed --as failed --scope acme --reason r --yes", "release unknown --scope acme",
		"resolve unknown --as failed --status 42 --scope acme --reason r",
	} {
		status, out, errs := d.run("", args)
		aStatus, aOut, aErrs := r.run(t, "", args)
		lease := strings.Contains(args, "running") // how much of it is left differs
		if strings.Contains(args, "--status") {
			errs = aErrs // at a store, how the service encrypts is asked first or last
		}
		if aStatus != status || aOut != out || aErrs != errs && !lease {
			t.Errorf("%s: %d %q %q, and at the store %d %q %q", args, aStatus, aOut, aErrs, status, out, errs)
		}
	}
	if strings.Contains(r.sent, "acme") || strings.Contains(r.sent, "/completed") {
		t.Errorf("a key or a scope was sent: %s", r.sent)
	}
}

func TestKeysChangeTheSameThroughTheAdminAPI(t *testing.T) {
	for args, want := range map[string]store.State{
		"release unknown":                                    store.Retryable,
		"release dead --class payments":                      store.Retryable,
		"resolve unknown --as not-executed":                  store.Retryable,
		"resolve dead --as failed":                           store.None,
		"resolve dead --as failed --status 500 --header A:b": store.Failed,
		"expire completed":                                   store.None,
	} {
		d := newShop(t)
		r := serveAdmin(t, d)
		key := strings.Fields(args)[1]
		id := store.Digest("", "acme", key).String()
		const more = " --scope acme --reason case-7 --actor ada -o json"
		if status, _, errs := r.run(t, id[:12]+"\n", args+more); status == exitOK || !strings.Contains(errs, "not confirmed") || r.audit.Len() > 0 {
			t.Errorf("%s, not confirmed: %d %s", args, status, errs)
		}
		if status, out, errs := r.run(t, "", args+more+" --dry-run"); status != exitOK || !strings.Contains(out, admin.DryRun) {
			t.Errorf("%s, dry run: %d %s%s", args, status, out, errs)
		}
		status, out, errs := r.run(t, admin.Short(id)+"\n", args+more)
		var e admin.Entry
		if err := json.Unmarshal([]byte(out), &e); status != exitOK || err != nil || e.Result != admin.Done || e.Says != "ada" || e.ID != id || d.state(key) != want {
			t.Errorf("%s: %d %s%s, %v, want %v", args, status, out, errs, d.state(key), want)
		}
		if n := strings.Count(r.audit.String(), "\n"); n != 3 || strings.Contains(errs, `"why"`) || strings.Contains(r.audit.String(), "acme") {
			t.Errorf("%s: the audit is the process's, and has %d lines: %s%s", args, n, r.audit.String(), errs)
		}
	}
}

func TestRefusalOfTheAdminAPIIsExplained(t *testing.T) {
	d := newShop(t)
	r := serveAdmin(t, d)
	for args, want := range map[string]string{
		"ls --store s.db": "either --admin or --store",
		"release unknown --scope acme --reason r --yes --retention 1h":                      "--retention is for --store",
		"release unknown --scope acme --reason r --yes --audit a.jsonl":                     "--audit is for --store",
		"release unknown --scope acme --reason r --yes --class none":                        "class",
		"resolve unknown --scope acme --as completed --status 201 --plain --reason r --yes": "--plain is for --store",
		"release unknown --scope acme --yes":                                                "--reason is required",
		"release never --scope acme --yes --reason r":                                       "no such operation",
	} {
		if status, out, errs := r.run(t, "", args); status == exitOK || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s%s", args, status, out, errs)
		}
	}
	if status, _, errs := d.run("", "release unknown --scope acme --reason r --yes --class payments"); status != exitUsage || !strings.Contains(errs, "--class is for --admin") {
		t.Errorf("got %d %s; want status == exitUsage, strings.Contains(errs, \"--class is for --admin\")", status, errs)
	}
	for _, wrong := range []string{"", "another-token-that-is-wrong"} {
		t.Setenv(adminVariable, wrong)
		if status, out, errs := r.run(t, "", "ls"); status != exitFailure || out != "" || !strings.Contains(errs, adminVariable) || wrong != "" && strings.Contains(errs, wrong) {
			t.Errorf("with %q: %d %s%s", wrong, status, out, errs)
		}
	}
	for address, want := range map[string]string{"127.0.0.1:9090": "--admin: it must be a URL", "http://admin.example": "show the token to the network", "http://127.0.0.1:1": "could not be asked"} {
		t.Setenv(adminVariable, adminToken)
		if status, _, errs := command(t, "keys", "ls", "--admin", address); status == exitOK || !strings.Contains(errs, want) || strings.Contains(errs, adminToken) {
			t.Errorf("%s: %d %s", address, status, errs)
		}
	}
	if d.state("unknown") != store.Unknown {
		t.Error("something was changed")
	}
}

// The running proxy has the page and the API, and the token of its environment.
func TestProxyHasTheOperatorsAPI(t *testing.T) {
	b := openBooks(t, func() {})
	args := []string{"--upstream", b.URL, "--listen", "127.0.0.1:0", "--scope", "single-tenant", "--store", filepath.Join(t.TempDir(), "s.db")}
	t.Setenv(adminVariable, "")
	p := startProxy(t, args...)
	pay(t, p.url, "k")
	if status, out, errs := command(t, "keys", "get", "k", "--scope", "single-tenant", "--admin", p.admin); status != exitOK || !strings.Contains(out, "completed") {
		t.Errorf("looking, without a token: %d %s%s", status, out, errs)
	}
	if status, _, errs := command(t, "keys", "expire", "k", "--scope", "single-tenant", "--admin", p.admin, "--reason", "r", "--yes"); status != exitFailure || !strings.Contains(errs, adminVariable) {
		t.Errorf("a change, without a token: %d %s", status, errs)
	}
	p.kill()
	t.Setenv(adminVariable, adminToken)
	p = startProxy(t, args...)
	if status, out, errs := command(t, "keys", "expire", "k", "--scope", "single-tenant", "--admin", p.admin, "--reason", "privacy", "--actor", "ada", "--yes"); status != exitOK || !strings.Contains(out, "tombstone") {
		t.Errorf("%d %s%s", status, out, errs)
	}
	p.saysNow("why=privacy")
	if strings.Contains(p.log(), adminToken) {
		t.Errorf("the token is in the log: %s", p.log())
	}
	if status, body, _ := pay(t, p.url, "k"); status != 410 || b.count("k") != 1 {
		t.Errorf("got %d %s; want status == 410, b.count(\"k\") == 1", status, body)
	}
	res, err := oneShot.Get(p.admin + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if page, _ := io.ReadAll(res.Body); res.StatusCode != 200 || !bytes.Contains(page, []byte("<title>stet")) {
		t.Errorf("the page: %d %s", res.StatusCode, page)
	}
	t.Setenv(adminVariable, "short")
	if status, _, errs := command(t, append([]string{"proxy"}, args...)...); status != exitUsage || !strings.Contains(errs, "admin.token: 5 bytes") {
		t.Errorf("a token that is not safe: %d %s", status, errs)
	}
}
