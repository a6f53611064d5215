// Package stetmetrics counts what an engine does, for Prometheus.
//
//	metrics, err := stetmetrics.New(prometheus.DefaultRegisterer)
//	engine, err := stet.New(store, stet.Options{Observer: metrics})
//
// Labels are the names of events, states and classes, all of which the service
// itself has chosen: never a key, a scope or a path. The dashboard and the alert
// rules in this package's folder use these names, and a test holds them to it.
package stetmetrics

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stet-go/stet/observe"
)

// Metrics are the counters of one process. They are a observe.Observer, safe for
// concurrent use, and meant for all engines of the process.
type Metrics struct {
	events *prometheus.CounterVec
	ended  *prometheus.CounterVec
	runs   *prometheus.HistogramVec
	claims prometheus.Histogram
	swept  *prometheus.CounterVec
	behind prometheus.Gauge

	scan scan
}

// New registers the metrics. An error is that of the registerer: they are
// registered already, for one.
func New(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stet", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "stet", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		events: counter("events_total", "What happened to operations, by the name of the event.", "event", "class"),
		ended:  counter("runs_ended_total", "Runs that have ended, by the state of their record.", "class", "state"),
		runs: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "stet", Name: "run_seconds",
			Help: "How long runs took, from the claim to the durable outcome.", Buckets: runBuckets}, []string{"class"}),
		claims: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "stet", Name: "claim_seconds",
			Help: "How long the store took to grant claims, tries included: what a first request waits for it.", Buckets: claimBuckets}),
		swept: counter("swept_records_total", "What sweeps did: marked_unknown, expired, purged.", "what"),
		behind: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "stet", Name: "sweep_behind",
			Help: "1 if the last sweep left something to do."}),
		scan: scan{
			records: gauge("records", "Records that are not settled, by state and class, as last scanned: running, unknown, accepted.", "state", "class"),
			oldest:  gauge("oldest_record_seconds", "Time since the oldest record of that state and class was claimed or accepted, as last scanned.", "state", "class"),
			total:   counter("scans_total", "Scans of the store, by how they ended: complete, cut, failed.", "result"),
			seen:    make(map[series]bool),
		},
	}
	build := gauge("build_info", "1; the labels are the version of stet and that of Go.", "version", "go_version")
	build.WithLabelValues(version(), runtime.Version()).Set(1)
	var errs []error
	for _, c := range []prometheus.Collector{m.events, m.ended, m.runs, m.claims, m.swept, m.behind, m.scan.records, m.scan.oldest, m.scan.total, build} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("stetmetrics: %w", err)
	}
	return m, nil
}

// version is that of stet in this program; "(devel)" or "" in a build from a checkout.
func version() string {
	const path = "github.com/stet-go/stet"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == path {
			return m.Version
		}
	}
	return ""
}

// runBuckets are in seconds.
var runBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// claimBuckets are in seconds, from what a store in memory takes to what the
// engine waits for one by default.
var claimBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}

// Observe implements observe.Observer.
func (m *Metrics) Observe(ctx context.Context, ev observe.Event) {
	m.events.WithLabelValues(ev.Kind.String(), ev.Class).Inc()
	switch ev.Kind {
	case observe.Claimed:
		if ev.Elapsed > 0 {
			m.claims.Observe(ev.Elapsed.Seconds())
		}
	case observe.Settled, observe.Released:
		m.ended.WithLabelValues(ev.Class, ev.State.String()).Inc()
		if ev.Elapsed > 0 {
			m.runs.WithLabelValues(ev.Class).Observe(ev.Elapsed.Seconds())
		}
	case observe.Swept:
		for what, n := range map[string]int{"marked_unknown": ev.Swept.MarkedUnknown, "expired": ev.Swept.Expired, "purged": ev.Swept.Purged} {
			m.swept.WithLabelValues(what).Add(float64(n))
		}
		m.behind.Set(0)
		if ev.Swept.More {
			m.behind.Set(1)
		}
	}
}
