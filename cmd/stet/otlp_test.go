package main

import (
	"compress/gzip"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

var someSpans = []*tracepb.ResourceSpans{{SchemaUrl: "a schema", ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: "a span"}}}}}}

func TestCollectorReadsTheVariablesOfOpenTelemetry(t *testing.T) {
	var calls atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		b, err := io.ReadAll(z)
		var got tracepb.TracesData
		if err != nil || proto.Unmarshal(b, &got) != nil || !proto.Equal(&got, &tracepb.TracesData{ResourceSpans: someSpans}) {
			t.Errorf("the collector got %q, %v", b, err)
		}
		if r.URL.Path != "/base/v1/traces" || r.Header.Get("Api-Key") != "a b" || r.Header.Get("Team") != "x" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("the request was %s with %v", r.URL, r.Header)
		}
	}))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"ENDPOINT": server.URL + "/base/", "HEADERS": "api-key=a%20b, team=x", "COMPRESSION": "gzip", "CERTIFICATE": ca, "TIMEOUT": "60000", "PROTOCOL": "http/protobuf",
	} {
		t.Setenv("OTEL_EXPORTER_OTLP_"+name, value)
	}
	c, err := newCollector()
	if err != nil {
		t.Fatal(err)
	}
	c.backoff = 1
	if err := c.UploadTraces(t.Context(), someSpans); err != nil || calls.Load() != 2 {
		t.Errorf("after %d calls: %v; want success by the second", calls.Load(), err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.UploadTraces(t.Context(), someSpans); err == nil {
		t.Error("spans were sent after Stop")
	}
}

func TestCollectorGivesUp(t *testing.T) {
	for status, want := range map[int]int32{http.StatusBadRequest: 1, http.StatusTooManyRequests: otlpAttempts} {
		var calls atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			http.Error(w, "the reason", status)
		}))
		t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", server.URL)
		c, err := newCollector()
		if err != nil {
			t.Fatal(err)
		}
		c.backoff = 1
		if err := c.UploadTraces(t.Context(), someSpans); err == nil || !strings.Contains(err.Error(), "the reason") || calls.Load() != want {
			t.Errorf("%d: %d calls, want %d; %v", status, calls.Load(), want, err)
		}
		server.Close()
	}
}

func TestCollectorRefusesWrongVariables(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
	for name, value := range map[string]string{
		"ENDPOINT": "collector:4317", "PROTOCOL": "grpc", "HEADERS": "secret", "TIMEOUT": "10s", "CERTIFICATE": "/does/not/exist", "CLIENT_CERTIFICATE": "/does/not/exist",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_"+name, value)
			if _, err := newCollector(); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_"+name) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
		})
	}
}
