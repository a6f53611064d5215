package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/internal/verify"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// freeAddr is an address without a listener.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := rig.FreeAddr() // which no connection takes in the meantime
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func TestVerifyCountsForwardedRequests(t *testing.T) {
	probe := freeAddr(t)
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: probe})
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	protected := httptest.NewServer(stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})).Handler(forward))
	defer protected.Close()
	bare := httptest.NewServer(forward)
	defer bare.Close()

	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"verify", "--url", protected.URL, "--probe", probe, "-o", "json", "-H", "X-Test: yes"}, nil, &out, &errs); status != exitOK {
		t.Errorf("a protected service: status %d, %s", status, errs.String())
	}
	var report verify.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || !report.Executions || report.Failed != 0 || len(report.Points) < 10 {
		t.Errorf("got %v, %+v; want report.Executions, report.Failed == 0, len(report.Points) >= 10, no error", err, report)
	}
	out.Reset()
	if status := run(t.Context(), []string{"verify", "--url", bare.URL, "--probe", probe}, nil, &out, &errs); status != exitFailure {
		t.Errorf("an unprotected service: status %d", status)
	}
	if text := out.String(); !strings.Contains(text, "✗ a retry gets the first answer again") || !strings.Contains(text, "D07") {
		t.Errorf("got %s; want strings.Contains(text, \"✗ a retry gets the first answer again\"), strings.Contains(text, \"D07\")", text)
	}
}

func TestVerifyExplainsWrongFlags(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	defer down.Close()
	for want, args := range map[string][]string{
		"--url is missing": {"verify"},
		"no colon":         {"verify", "--url", down.URL, "-H", "nonsense"},
		"table or json":    {"verify", "--url", down.URL, "-o", "xml"},
		"--probe":          {"verify", "--url", down.URL, "--probe", "256.0.0.1:1"},
		"succeeds":         {"verify", "--url", down.URL},
	} {
		var errs bytes.Buffer
		if status := run(t.Context(), args, nil, &bytes.Buffer{}, &errs); status == exitOK || !strings.Contains(errs.String(), want) {
			t.Errorf("%v: status %d, %s; want %q", args, status, errs.String(), want)
		}
	}
}

func TestVerifyPrintsJSONAlsoWhenItStopsEarly(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	defer down.Close()
	for want, url := range map[string]string{"succeeds": down.URL, "absolute": "nonsense"} {
		var out, errs bytes.Buffer
		status := run(t.Context(), []string{"verify", "--url", url, "-o", "json"}, nil, &out, &errs)
		var report verify.Report
		if err := json.Unmarshal(out.Bytes(), &report); err != nil || status == exitOK || !strings.Contains(report.Stopped, want) {
			t.Errorf("%s: status %d, %v, %s", url, status, err, out.String())
		}
	}
}
