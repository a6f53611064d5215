package proxy_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
)

func TestContradictingFieldsAreErrors(t *testing.T) {
	_, certFile, keyFile := certificate(t)
	route := head + "routes:\n  - path: /a\n    "
	const pg = "store: postgres://h/d\n"
	for name, tc := range map[string]wrong{
		"drain under a timeout":    {route + "timeout: 2m\ndrain: 1m\n", []string{"stet.yaml:5: drain: 1m0s is shorter than the timeout of /a, 2m0s", "outcome is unknown"}},
		"timeout under connecting": {"upstream:\n  url: http://127.0.0.1:3000\n  connect_timeout: 3s\nroutes: [{path: /a, timeout: 2s}]\n", []string{"stet.yaml:3: upstream.connect_timeout: 3s is longer than the timeout of /a, 2s"}},
		"default under connecting": {"upstream:\n  url: http://127.0.0.1:3000\n  connect_timeout: 6m\nroutes: [{path: /a}]\n", []string{"upstream.connect_timeout: 6m0s is longer"}},
		"store slower than lease":  {head + "store:\n  url: s.db\n  timeout: 10s\nroutes: [{path: /a, lease: 10s}]\n", []string{"stet.yaml:4: store.timeout: 10s is as long as the lease of /a"}},
		"wait over max_wait":       {route + "wait: 9s\n    max_wait: 8s\n", []string{"stet.yaml:4: routes[0].wait: 9s is longer than max_wait, 8s"}},
		"body over memory":         {head + "limits: {memory: 2MiB}\nroutes:\n  - path: /a\n    max_body: 2MiB\n", []string{"stet.yaml:5: routes[0].max_body: 2097152 bytes", "limits.memory_per_peer, 1048576"}},
		"pass with a lease":        {route + "pass: true\n    lease: 1s\n    key: optional\n", []string{"stet.yaml:5: routes[0].lease: the route lets its requests pass", "stet.yaml:6: routes[0].key: the route"}},
		"unrouted without routes":  {head + "unrouted: pass\n", []string{"stet.yaml:2: unrouted: without routes every path is protected"}},
		"worker without a store":   {head + "store: memory\nworker: elsewhere\n", []string{"stet.yaml:3: worker: the store is memory"}},
		"replicas over timeout":    {head + "store: {url: 'redis://h', replicas: 1, replica_timeout: 6s}\n", []string{"store.replica_timeout: 6s is longer than store.timeout, 5s"}},
		"replicas over the most":   {head + "store: {url: 'redis://h', replicas: 1, replica_timeout: 11s, timeout: 20s}\n", []string{"store.replica_timeout: 11s; at most 10s"}},
		"busy over timeout":        {head + "store: {url: s.db, busy_timeout: 6s}\n", []string{"store.busy_timeout: 6s is longer than store.timeout, 5s"}},
		"message twice":            {head + "relay: {retry: 5s, targets: [{by: 'http://127.0.0.1:1', timeout: 6s}]}\n", []string{"relay.targets[0].timeout: 6s is longer than relay.retry, 5s"}},
		"settled and encrypted":    {head + pg + "encryption: {keys: [{name: a, file: " + secretFile(t) + "}]}\nroutes: [{path: /a, settles: service}]\n", []string{"stet.yaml:4: routes[0].settles: what a service settles is not encrypted"}},
		"settled and verified":     {head + pg + "routes: [{path: /a, settles: service, verify: {url: /v}}]\n", []string{"stet.yaml:3: routes[0].verify: with settles: service no outcome is unknown"}},
		"settled and stale":        {head + pg + "routes: [{path: /a, settles: service, stale: fail}]\n", []string{"stet.yaml:3: routes[0].stale: with settles: service no outcome is unknown"}},
		"one address for two":      {head + "listen: :9090\n", []string{"admin.listen: that is the address for traffic"}},
		"to itself":                {"upstream:\n  url: http://localhost:8080\n", []string{"stet.yaml:2: upstream.url: that is where the proxy itself listens"}},
		"to itself, by default":    {"upstream:\n  url: http://127.0.0.1/x\nlisten: :80\n", []string{"stet.yaml:2: upstream.url: that is where the proxy itself listens"}},
		"to its operators":         {"upstream:\n  url: http://127.0.0.1:9090\n", []string{"stet.yaml:2: upstream.url: that is where the proxy itself listens for operators"}},
		"certificates without CA":  {head + "scope: mtls\n", []string{"stet.yaml:2: scope: a client without a verified certificate is refused: set tls.client_ca"}},
		"unverified certificates":  {head + "tls: {certificate: " + certFile + ", key: " + keyFile + "}\nroutes: [{path: /a, scope: [host, 'mtls:uri']}]\n", []string{"stet.yaml:3: routes[0].scope: a client without"}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.isAnError(t)
			if _, err := parse(t, tc.yaml, nil); err != nil && strings.Count(err.Error(), "\n") != len(tc.want)-1 && name != "drain under a timeout" && name != "body over memory" && name != "worker without a store" {
				t.Errorf("valid fields are refused, too: %v", err)
			}
		})
	}
}

// secretFile is a file with a key.
func secretFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(keyFiles(t, "key"), "key")
}

func TestFieldsThatFitAreNoErrors(t *testing.T) {
	_, certFile, keyFile := certificate(t)
	route := head + "routes:\n  - path: /a\n    "
	const pg = "store: postgres://h/d\n"
	for _, yaml := range []string{
		head, head + "drain: 1s\n", route + "timeout: 2m\n", route + "timeout: 2m\ndrain: 2m\n", route + "pass: true\n    methods: [PUT]\n    trailing_slash: true\n",
		route + "wait: 9s\n", route + "wait: 8s\n    max_wait: 8s\n", "limits: {memory_per_peer: 250MiB}\n" + route + "max_body: 200MiB\n", route + "lease: 1s\n", route + "timeout: 1s\n",
		head + pg + "drain: 1s\nroutes: [{path: /a, timeout: 2m, settles: service}]\n", head + "store: {url: s.db, busy_timeout: 8s, timeout: 9s}\n",
		head + "listen: 127.0.0.1:9090\nadmin: {listen: '127.0.0.2:9090'}\n", head + "listen: 127.0.0.1:0\nadmin: {listen: '127.0.0.1:0'}\n", head + "admin: {listen: 'off'}\n",
		"upstream: {url: 'http://127.0.0.2:8080'}\n", "upstream: {url: 'http://other:8080'}\n",
		head + "scope: mtls\ntls: {certificate: " + certFile + ", key: " + keyFile + ", client_ca: " + certFile + "}\n",
	} {
		if _, err := parse(t, yaml, nil); err != nil {
			t.Errorf("%s: %v", yaml, err)
		}
	}
}

func TestDrainIsAsLongAsTheLongestTimeout(t *testing.T) {
	for yaml, want := range map[string]time.Duration{
		head: 30 * time.Second, head + "routes: [{path: /a, timeout: 2m}, {path: /b, timeout: 1m}]\n": 2 * time.Minute,
		head + "routes: [{path: /a, timeout: 2s}]\n": 30 * time.Second, head + "drain: 3s\n": 3 * time.Second,
		head + "store: postgres://h/d\nroutes: [{path: /a, timeout: 2m, settles: service}]\n": 30 * time.Second,
	} {
		c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), env(nil))
		if err != nil || c.DrainTime() != want {
			t.Errorf("%s: %v, %v; want %v", yaml, c.DrainTime(), err, want)
		}
	}
}
