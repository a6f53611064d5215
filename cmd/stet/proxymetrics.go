package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stet-go/stet/internal/proxy"
)

// exportCounts exports the counts of a proxy that are not events.
func exportCounts(registry *prometheus.Registry, p *proxy.Proxy, s *servers) {
	counter := func(name, help string, of func() uint64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(of()) }))
	}
	counter("stet_proxy_unprotected_total", "Requests with an idempotency key that passed unprotected, because no route names their path or a route lets them.",
		func() uint64 { return p.Counts().Unprotected })
	counter("stet_proxy_emit_refused_total", "Values of Stet-Emit in responses that are no messages; they are stored, to be sent to stet.refused.",
		func() uint64 { return p.Counts().Refused })
	counter("stet_proxy_emit_lost_total", "Messages in responses that could not be stored: of requests that are not protected, or if the service settles.",
		func() uint64 { return p.Counts().Lost })
	counter("stet_proxy_busy_total", "Requests refused because the proxy already held as many bytes as limits.memory allows, or as limits.memory_per_peer allows one client address.",
		func() uint64 { return p.Counts().Busy })
	counter("stet_proxy_connections_refused_total", "Connections that were closed because limits.connections were open, none of them idle.", s.turnedAway)
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "stet_proxy_held_bytes", Help: "Bytes of requests and responses that the proxy holds; limits.memory is the limit."},
		func() float64 { return float64(p.Counts().InHand) }))
	registry.MustRegister(messageCounts{p})
}
