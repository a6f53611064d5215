package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stet-go/stet/internal/proxy"
)

// countProxy exports what a proxy counts beside its events.
func countProxy(registry *prometheus.Registry, p *proxy.Proxy) {
	for name, c := range map[string]struct {
		help string
		of   func(proxy.Counts) uint64
	}{
		"stet_proxy_unprotected_total": {
			"Requests with an idempotency key that passed unprotected, because no route names their path or a route lets them.",
			func(c proxy.Counts) uint64 { return c.Unprotected },
		},
		"stet_proxy_emit_refused_total": {
			"Values of Stet-Emit in responses that are no messages; they are kept, to be sent to stet.refused.",
			func(c proxy.Counts) uint64 { return c.Refused },
		},
		"stet_proxy_emit_lost_total": {
			"Messages in responses that could not be kept: of requests that are not protected, or where the service settles.",
			func(c proxy.Counts) uint64 { return c.Lost },
		},
		"stet_proxy_busy_total": {
			"Requests refused because the proxy already held as many bytes as limits.memory allows, or as limits.memory_per_peer allows one client address.",
			func(c proxy.Counts) uint64 { return c.Busy },
		},
	} {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: c.help},
			func() float64 { return float64(c.of(p.Counts())) }))
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "stet_proxy_held_bytes", Help: "Bytes of requests and responses that the proxy holds; limits.memory is the most."},
		func() float64 { return float64(p.Counts().InHand) }))
}

// countConnections exports how many connections there was no room for.
func countConnections(registry *prometheus.Registry, s *servers) {
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "stet_proxy_connections_refused_total", Help: "Connections that were closed because there were as many as limits.connections allows, none of them idle.",
	}, func() float64 { return float64(s.turnedAway()) }))
}
