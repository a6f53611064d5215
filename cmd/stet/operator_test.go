package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// shop is a store with an operation in each state.
type shop struct {
	t     *testing.T
	path  string
	audit string
}

// newShop makes operations of the scope acme whose keys are their states.
func newShop(t *testing.T) *shop {
	t.Helper()
	d := &shop{t: t, path: filepath.Join(t.TempDir(), "s.db"), audit: filepath.Join(t.TempDir(), "audit.jsonl")}
	now := time.Now().Add(-time.Hour)
	s, err := sqlite.Open(t.Context(), d.path, sqlite.Options{Clock: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	keep := store.Retention{Result: 24 * time.Hour, Tombstone: 48 * time.Hour}
	claim := func(key string, lease time.Duration) store.Claim {
		rec, err := s.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", "acme", key), Scope: store.DigestScope("", "acme"),
			Fingerprint: stet.NewFingerprint([]byte("x")), Owner: store.NewOwner(), Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		return rec.Claim()
	}
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1, Policy: stet.Policy{Retention: keep}})
	for _, key := range []string{"completed", "failed"} {
		run, err := e.Begin(t.Context(), stet.Op{Scope: "acme", Key: key, Fingerprint: stet.NewFingerprint([]byte("x"))})
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{Failed: key == "failed", Body: []byte("the secret result")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Release(t.Context(), claim("retryable", time.Minute), keep); err != nil {
		t.Fatal(err)
	}
	claim("running", 24*time.Hour)
	claim("dead", time.Minute)
	claim("unknown", time.Minute)
	now = now.Add(2 * time.Minute)
	claim("unknown", time.Minute) // marks it unknown
	return d
}

// run runs a command on the shop's store.
func (d *shop) run(stdin, args string, more ...string) (status int, stdout, stderr string) {
	d.t.Helper()
	return d.runFrom(strings.NewReader(stdin), args, more...)
}

func (d *shop) runFrom(stdin io.Reader, args string, more ...string) (status int, stdout, stderr string) {
	d.t.Helper()
	all := append(append([]string{"keys"}, strings.Fields(args)...), "--store", d.path)
	var out, errs bytes.Buffer
	status = run(d.t.Context(), append(all, more...), stdin, &out, &errs)
	return status, out.String(), errs.String()
}

func (d *shop) state(key string) store.State {
	d.t.Helper()
	s, err := sqlite.Open(d.t.Context(), d.path, sqlite.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	defer s.Close()
	rec, err := s.Read(d.t.Context(), store.Digest("", "acme", key))
	if err != nil {
		d.t.Fatal(err)
	}
	if rec.Gone {
		return store.None // for what expire makes of it
	}
	return rec.State
}

func TestKeysLsFiltersAndHidesBodies(t *testing.T) {
	d := newShop(t)
	for args, want := range map[string]int{
		"ls -o json": 6, "ls -o json --state unknown": 1, "ls -o json --state completed,failed": 2, "ls -o json --scope acme": 6,
		"ls -o json --scope other": 0, "ls -o json --older 30m": 6, "ls -o json --newer 30m": 0, "ls -o json --limit 2": 2,
	} {
		status, out, errs := d.run("", args)
		var got struct {
			Records []map[string]any
			More    bool
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || status != exitOK || len(got.Records) != want || got.More != (want == 2 && strings.Contains(args, "limit")) {
			t.Errorf("%s: status %d, %v, %d records, %s%s", args, status, err, len(got.Records), out, errs)
		}
		if strings.Contains(out, "secret") {
			t.Errorf("%s shows a body", args)
		}
	}
	if _, out, _ := d.run("", "ls"); strings.Count(out, "\n") != 7 || !strings.Contains(out, "STATE") || !strings.Contains(out, "dead: its lease has run out") {
		t.Errorf("got %s; want strings.Count(out, \"\\n\") == 7, strings.Contains(out, \"STATE\"), strings.Contains(out, \"dead: its lease has run out\")", out)
	}
}

func TestKeysGetShowsTheBodyOnlyWhenAsked(t *testing.T) {
	d := newShop(t)
	id := store.Digest("", "acme", "completed").String()
	for _, args := range []string{"get completed --scope acme", "get --id " + id, "get completed --scope acme -o json"} {
		if status, out, errs := d.run("", args); status != exitOK || !strings.Contains(out, id) || strings.Contains(out, "secret") || strings.Contains(out, "acme") {
			t.Errorf("%s: %d %s%s", args, status, out, errs)
		}
	}
	if _, out, errs := d.run("", "get completed --scope acme --body"); !strings.Contains(out, "the secret result") {
		t.Errorf("%s%s", out, errs)
	}
	for args, want := range map[string]string{
		"get completed --scope other": "no such operation", "get completed": "--scope", "get --id 12": "64 hexadecimal",
		"get k --scope a --id " + id: "either", "ls --state gone": "none of running", "ls --limit 0": "--limit is 0", "ls -o xml": "table or json",
		"ls --older -5m": "--older",
	} {
		if status, out, errs := d.run("", args); status == exitOK || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s%s", args, status, out, errs)
		}
	}
	if status, _, errs := command(t, "keys", "ls", "--store", filepath.Join(t.TempDir(), "none.db")); status != exitUsage || !strings.Contains(errs, "there is no file") {
		t.Errorf("a store that is not there: %d %s", status, errs)
	}
}

func TestChangesAreMadeOnceConfirmedAndWrittenDown(t *testing.T) {
	d := newShop(t)
	id := store.Digest("", "acme", "unknown").String()
	const args = "resolve unknown --scope acme --as completed --status 201 --plain --reason case-7"
	for _, refused := range []string{"", "yes\n", id[:12] + "\n"} {
		if status, _, errs := d.run(refused, args, "--audit", d.audit); status == exitOK || d.state("unknown") != store.Unknown || !strings.Contains(errs, admin.Short(id)+", to continue") {
			t.Fatalf("typed %q: %d %s", refused, status, errs)
		}
	}
	if status, out, _ := d.run("", args+" --dry-run", "--audit", d.audit); status != exitOK || !strings.Contains(out, "dry run") || d.state("unknown") != store.Unknown {
		t.Fatalf("dry run: %d %s, %v", status, out, d.state("unknown"))
	}
	if status, out, errs := d.run(admin.Short(id)+"\n", args, "--audit", d.audit, "--actor", "ada"); status != exitOK || d.state("unknown") != store.Completed {
		t.Fatalf("%d %s%s, %v", status, out, errs, d.state("unknown"))
	}
	text, err := os.ReadFile(d.audit)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 { // the dry run, begun, done
		t.Fatalf("audit: %s", text)
	}
	var e admin.Entry
	if err := json.Unmarshal([]byte(lines[2]), &e); err != nil || e.Who != "ada" || e.Why != "case-7" || e.Action != "resolve" || e.Result != "done" ||
		e.ID != id || e.From.State != "unknown" || e.From.Fence == 0 || e.To != "completed" || time.Since(e.At).Abs() > time.Minute {
		t.Errorf("%v: %s", err, lines[2])
	}
	if strings.Contains(string(text), "acme") {
		t.Errorf("the audit names the scope: %s", text)
	}
}

func TestChangesThatCannotBeWrittenDownAreNotMade(t *testing.T) {
	d := newShop(t)
	if status, _, errs := d.run("", "release unknown --scope acme --reason r --yes", "--audit", filepath.Join(d.audit, "nowhere")); status == exitOK || d.state("unknown") != store.Unknown {
		t.Errorf("got %d %s; want status != exitOK, d.state(\"unknown\") == store.Unknown", status, errs)
	}
	if status, _, errs := d.run("", "release unknown --scope acme --yes"); status != exitUsage || !strings.Contains(errs, "--reason") || d.state("unknown") != store.Unknown {
		t.Errorf("without a reason: %d %s", status, errs)
	}
}

func TestResolutionsLeadToTheirStates(t *testing.T) {
	for args, want := range map[string]store.State{
		"release unknown":                               store.Retryable,
		"release dead":                                  store.Retryable,
		"resolve unknown --as not-executed":             store.Retryable,
		"resolve dead --as failed --status 500 --plain": store.Failed,
		"resolve unknown --as completed":                store.None, // a tombstone
		"expire completed":                              store.None,
		"resolve unknown --as completed --status 201 --plain --header A:b": store.Completed,
	} {
		d := newShop(t)
		status, out, errs := d.run("", args+" --scope acme --reason r --yes -o json")
		var e admin.Entry
		if err := json.Unmarshal([]byte(out), &e); status != exitOK || err != nil || e.Result != "done" || d.state(strings.Fields(args)[1]) != want {
			t.Errorf("%s: %d %s%s, %v, want %v", args, status, out, errs, d.state(strings.Fields(args)[1]), want)
		}
		if !strings.Contains(errs, `"why":"r"`) {
			t.Errorf("%s: no audit on the standard error: %s", args, errs)
		}
	}
}

func TestImpossibleChangesAreRefused(t *testing.T) {
	d := newShop(t)
	for args, want := range map[string]string{
		"release running": "under a lease", "release completed": "completed already", "resolve retryable --as failed": "retryable already",
		"expire unknown": "only a completed", "resolve unknown --as maybe": "give it completed", "resolve unknown --as not-executed --status 200": "no response",
		"resolve unknown --as completed --header A:b": "--status", "resolve unknown --as completed --status 42": "42",
		"resolve unknown --as completed --status 200 --header x": "no field", "resolve unknown --as completed --status 201": "--plain",
		"resolve unknown --as completed --retention 0s": "--retention is 0s", "resolve unknown --as failed --tombstone 1h": "--tombstone 1h0m0s",
	} {
		before := d.state(strings.Fields(args)[1])
		status, out, errs := d.run("", args+" --scope acme --reason r --yes")
		if status == exitOK || out != "" || !strings.Contains(errs, want) || d.state(strings.Fields(args)[1]) != before {
			t.Errorf("%s: %d %s%s", args, status, out, errs)
		}
	}
}

func TestChangesByHandHaveTheGivenRetention(t *testing.T) {
	for args, want := range map[string][2]time.Duration{
		"resolve unknown --as completed --status 201 --plain":                                     {24 * time.Hour, 30 * 24 * time.Hour},
		"resolve unknown --as completed --status 201 --plain --retention 48h --tombstone 2000h":   {48 * time.Hour, 2000 * time.Hour},
		"resolve unknown --as failed --status 500 --plain --retention 30m --tombstone 1h -o json": {30 * time.Minute, time.Hour},
		"release unknown --retention 1h":                                                          {0, time.Hour},
		"resolve unknown --as not-executed --retention 3h":                                        {0, 3 * time.Hour},
	} {
		d := newShop(t)
		if status, _, errs := d.run("", args+" --scope acme --reason r --yes"); status != exitOK {
			t.Fatalf("%s: %d %s", args, status, errs)
		}
		_, out, errs := d.run("", "get unknown --scope acme -o json")
		var v admin.Record
		if err := json.Unmarshal([]byte(out), &v); err != nil || v.ForgetAt == nil {
			t.Fatalf("%s: %v %s%s", args, err, out, errs)
		}
		near := func(at *time.Time, want time.Duration) bool {
			return at != nil && (time.Until(*at)-want).Abs() < 5*time.Minute
		}
		if want[0] > 0 && !near(v.ExpiresAt, want[0]) || !near(v.ForgetAt, want[1]) {
			t.Errorf("%s: %s", args, out)
		}
	}
}

func TestCheckNamesTheLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stet.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("upstream: {url: 'http://127.0.0.1:3000'}\nroutes:\n  - path: /a\n    leese: 3s\n")
	if status, out, errs := command(t, "check", file); status != exitFailure || out != "" || !strings.Contains(errs, "stet.yaml:4: ") || !strings.Contains(errs, "leese") {
		t.Errorf("%d %s%s", status, out, errs)
	}
	if status, out, _ := command(t, "check", file, "-o", "json"); status != exitFailure || !strings.Contains(out, `"acceptable":false`) {
		t.Errorf("%d %s", status, out)
	}
	write("upstream: {url: 'http://127.0.0.1:3000'}\nscope: single-tenant\n")
	if status, out, errs := command(t, "check", file); status != exitOK || !strings.Contains(out, "acceptable: every path") {
		t.Errorf("%d %s%s", status, out, errs)
	}
	if status, out, _ := command(t, "check", "--reference"); status != exitOK || !strings.Contains(out, "upstream:") {
		t.Errorf("got %d %s; want status == exitOK, strings.Contains(out, \"upstream:\")", status, out)
	}
	if status, _, _ := command(t, "check"); status != exitUsage {
		t.Errorf("without a file: %d", status)
	}
}

func TestOperatorsHelpFitsAScreen(t *testing.T) {
	for _, args := range []string{"check", "proxy", "doctor", "keys", "keys ls", "keys get", "keys resolve", "keys release", "keys expire"} {
		status, out, _ := command(t, append(strings.Fields(args), "--help")...)
		if n := strings.Count(out, "\n"); status != exitOK || n < 3 || n > 24 {
			t.Errorf("stet %s: status %d, %d lines", args, status, n)
		}
	}
}
