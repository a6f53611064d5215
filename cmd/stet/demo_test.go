package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/demo"
	"github.com/stet-go/stet/internal/rig"
)

// proxiedStorm runs the demo's storm with the service behind stet proxy.
func proxiedStorm(t *testing.T, store string) (report demo.Report) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "demo", "--proxy", "--json", "--payments", "40", "--kills", "3", "--store", store)
	cmd.Env = append(os.Environ(), commandEnv+"=1", "GORACE=atexit_sleep_ms=0")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAsynchronousStormIsOfAServiceWithStetInIt(t *testing.T) {
	for args, want := range map[string]string{
		"demo --async --serve": "leave --async out",
		"demo --async --proxy": "leave --proxy out",
	} {
		if status, _, errs := command(t, strings.Fields(args)...); status != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, %s", args, status, errs)
		}
	}
}

func TestAsynchronousStormChargesOnce(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "demo", "--async", "--json", "--payments", "20", "--kills", "2")
	cmd.Env = append(os.Environ(), commandEnv+"=1", "GORACE=atexit_sleep_ms=0")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	var report demo.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || !report.Async || report.With.ExecutedOnce != 20 || report.With.Accepted < 20 {
		t.Errorf("got %+v, %v; want report.Async, report.With.ExecutedOnce == 20, report.With.Accepted >= 20, no error", report, err)
	}
}

// The service knows nothing of idempotency, and both it and the proxy are killed
// with requests in flight.
func TestStormPassesThroughTheProxyOnEveryStore(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T) string{
		"sqlite": func(*testing.T) string { return "" },
		"redis":  func(t *testing.T) string { return "redis://" + rig.Redis(t).Addr() + "/5" },
		"postgres": func(t *testing.T) string {
			url := rig.Postgres(t).Database(t)
			must(t, "migrate", "up", "--url", url)
			return url
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := proxiedStorm(t, store(t))
			t.Logf("seed %d, %.1f s\nwithout %+v\nbehind  %+v", report.Seed, report.Seconds, report.Without, report.With)
			r := report.With
			if !report.Proxied || len(report.Violations) > 0 {
				t.Errorf("proxied %v, violations %q", report.Proxied, report.Violations)
			}
			if r.ExecutedOnce != 40 || r.Charges != 40 || r.Differing != 0 || r.Lost != 0 || r.Unknown != 0 {
				t.Errorf("behind the proxy: %+v", r)
			}
			if r.Replayed == 0 || r.Kills != 3 || r.InFlightAtKills < 3 {
				t.Errorf("it was not much of a storm: %+v", r)
			}
			if report.Without.ExecutedTwice == 0 {
				t.Errorf("the storm does no harm: %+v", report.Without)
			}
		})
	}
}
