package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
)

// conflicts collects errors of fields that contradict each other.
type conflicts struct{ errs []error }

// when adds an error about the field at path if wrong is true.
func (cs *conflicts) when(wrong bool, why string, path ...any) {
	if wrong {
		cs.errs = append(cs.errs, &misplaced{path, errors.New(why)})
	}
}

// A default of the engine, and a limit.
const (
	defaultStoreTimeout = 5 * time.Second
	maxReplicaTimeout   = 10 * time.Second
)

// crossCheck returns the errors of fields that contradict each other, each with the field to
// change.
func (c *Config) crossCheck() error {
	cs := &conflicts{}
	c.crossCheckStore(cs)
	engine, err := bareEngine(stet.Policy{})
	if err != nil {
		return err
	}
	defer engine.Close()
	usual, _ := engine.Policy("")
	for i, r := range c.Routes {
		c.crossCheckRoute(cs, &r, i, usual)
		cs.when(r.Async != nil && c.Store.Kind() == kindZooKeeper, "ZooKeeper stores no accepted operations; use another store", "routes", i, "async")
	}
	cs.when(c.Unrouted != "" && len(c.Routes) == 0, "without routes every path is protected; write routes, or leave it out", "unrouted")
	cs.when(c.Worker == workerElsewhere && c.Store.Kind() == kindMemory, "the store is memory, which no other process sees", "worker")
	cs.when(c.Relay != nil && c.Store.Kind() == kindZooKeeper, "ZooKeeper stores no messages; use another store", "relay")
	if c.Relay != nil {
		again := c.Relay.retry()
		for i, t := range c.Relay.Targets {
			cs.when(time.Duration(t.Timeout) > again, fmt.Sprintf("%v is longer than relay.retry, %v: the message is sent again before the first attempt ends", time.Duration(t.Timeout), again),
				"relay", "targets", i, "timeout")
		}
	}
	c.crossCheckEnd(cs)
	return errors.Join(cs.errs...)
}

// longest returns the longest timeout of routes whose outcome is unknown if the proxy ends, and
// the name of the route.
func (c *Config) longest() (d time.Duration, name string) {
	for _, r := range c.Routes {
		if t := time.Duration(r.Timeout); !r.Pass && (r.Async == nil || !r.Async.Repeatable) && r.Settles != settlesService && t > d {
			d, name = t, r.class()
		}
	}
	return d, name
}

// DrainTime is how long requests can continue during a shutdown: Drain, or else DefaultDrain or
// the longest timeout of a route, the longer of the two.
func (c *Config) DrainTime() time.Duration {
	d, _ := c.longest()
	return cmp.Or(time.Duration(c.Drain), max(DefaultDrain, d))
}

// DelayTime is how long a proxy that must end still takes requests: DrainDelay, or
// DefaultDrainDelay.
func (c *Config) DelayTime() time.Duration {
	if c.DrainDelay.Set {
		return c.DrainDelay.Duration
	}
	return DefaultDrainDelay
}

// closeTime is the time after the drain for the last calls of the store.
const closeTime = 5 * time.Second

// crossCheckEnd checks the times of a shutdown.
func (c *Config) crossCheckEnd(cs *conflicts) {
	if d, name := c.longest(); c.Drain != 0 && time.Duration(c.Drain) < d {
		cs.when(true, fmt.Sprintf("%v is shorter than the timeout of %s, %v: a request that takes as long is cut off when the proxy ends, and its outcome is unknown. "+
			"Write drain: %[3]v, or a shorter timeout, and let what ends the process wait for longer than that", time.Duration(c.Drain), name, d), "drain")
	}
	need := c.DelayTime() + c.DrainTime() + closeTime
	cs.when(c.Grace != 0 && time.Duration(c.Grace) < need, fmt.Sprintf("%v is shorter than drain_delay (%v), drain (%v) and %v for the end: requests in flight would be killed, and their outcome is unknown. "+
		"Write grace: %v, and give the process as much (terminationGracePeriodSeconds, TimeoutStopSec), or write a shorter drain_delay or drain", time.Duration(c.Grace), c.DelayTime(), c.DrainTime(), closeTime, need), "grace")
}

// crossCheckStore checks the times of the store.
func (c *Config) crossCheckStore(cs *conflicts) {
	s := &c.Store
	timeout := cmp.Or(time.Duration(s.Timeout), defaultStoreTimeout)
	cs.when(time.Duration(s.ReplicaTimeout) > maxReplicaTimeout, fmt.Sprintf("%v; at most %v", time.Duration(s.ReplicaTimeout), maxReplicaTimeout), "store", "replica_timeout")
	cs.when(time.Duration(s.ReplicaTimeout) > timeout, fmt.Sprintf("%v is longer than store.timeout, %v, which ends the call before", time.Duration(s.ReplicaTimeout), timeout), "store", "replica_timeout")
	cs.when(time.Duration(s.BusyTimeout) > timeout, fmt.Sprintf("%v is longer than store.timeout, %v, which ends the call before", time.Duration(s.BusyTimeout), timeout), "store", "busy_timeout")
}

// crossCheckRoute checks one route.
func (c *Config) crossCheckRoute(cs *conflicts, r *Route, i int, usual stet.Policy) {
	at := func(field ...any) []any { return append([]any{"routes", i}, field...) }
	lease, timeout := cmp.Or(time.Duration(r.Lease), usual.Lease), cmp.Or(time.Duration(r.Timeout), usual.RunTimeout)
	if r.Pass {
		for _, name := range r.protects() {
			cs.when(true, "the route lets its requests pass, unprotected (pass: true); leave it out", at(name)...)
		}
		return
	}
	storeTimeout, connect := time.Duration(c.Store.Timeout), time.Duration(c.Upstream.ConnectTimeout)
	cs.when(storeTimeout >= lease, fmt.Sprintf("%v is as long as the lease of %s, %v, or longer: a heartbeat that takes its time has lost the lease", storeTimeout, r.class(), lease), "store", "timeout")
	cs.when(connect > timeout, fmt.Sprintf("%v is longer than the timeout of %s, %v, which ends the run before", connect, r.class(), timeout), "upstream", "connect_timeout")
	cs.when(r.MaxWait != 0 && r.Wait > r.MaxWait, fmt.Sprintf("%v is longer than max_wait, %v: who asks to wait would wait for less than who does not", time.Duration(r.Wait), time.Duration(r.MaxWait)), at("wait")...)
	memory := c.Limits.perPeer()
	cs.when(int64(r.MaxBody)+perRequest > memory, fmt.Sprintf("%d bytes, and %d for the request itself, are more than limits.memory_per_peer, %d: such a request is never taken", r.MaxBody, perRequest, memory), at("max_body")...)
	if r.Settles == settlesService {
		cs.when(c.Encryption != nil && !c.Encryption.AcceptPlain, "what a service settles is not encrypted, and would not be replayed; leave encryption out, or set encryption.accept_plain", at("settles")...)
		cs.when(r.Stale != "", "with settles: service no outcome is unknown; leave it out", at("stale")...)
		cs.when(r.Verify != nil, "with settles: service no outcome is unknown; leave it out", at("verify")...)
	}
}

// protects returns the fields of a route that say how it protects.
func (r *Route) protects() (names []string) {
	v := reflect.ValueOf(*r)
	for f := range tagged(v.Type()) {
		name := f.Tag.Get("yaml")
		if !v.FieldByIndex(f.Index).IsZero() && !slices.Contains([]string{"path", "name", "methods", "case_insensitive", "trailing_slash", "pass"}, name) {
			names = append(names, name)
		}
	}
	return names
}

// checkServing returns the errors of the listeners of the command. A program with a Proxy can
// listen elsewhere.
func (c *Config) checkServing() error {
	cs := &conflicts{}
	listen, operators := cmp.Or(c.Listen, DefaultListen), cmp.Or(c.Admin.Listen, DefaultAdmin)
	cs.when(sameListener(listen, operators), "that is the address for traffic (listen), too: two listeners cannot share one", "admin", "listen")
	if u, err := url.Parse(c.Upstream.URL); err == nil && u.Host != "" {
		host := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]))
		cs.when(sameListener(listen, host), "that is where the proxy itself listens for traffic: requests would loop", "upstream", "url")
		cs.when(sameListener(operators, host), "that is where the proxy itself listens for operators", "upstream", "url")
	}
	verified := c.TLS != nil && c.TLS.ClientCA != ""
	cs.when(c.Scope.certified() && !verified, "a client without a verified certificate is refused: set tls.client_ca, and tls", "scope")
	for i, r := range c.Routes {
		cs.when(r.Scope.certified() && !verified, "a client without a verified certificate is refused: set tls.client_ca, and tls", "routes", i, "scope")
	}
	return errors.Join(cs.errs...)
}

// certified reports whether a scope is read from the client's certificate.
func (s *Scope) certified() bool {
	return s != nil && (strings.HasPrefix(s.Kind, "mtls") || slices.ContainsFunc(s.All, func(one Scope) bool { return one.certified() }))
}

// sameListener reports whether two addresses are one for a listener. It resolves no names but
// localhost.
func sameListener(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	hostA, hostB = listenerHost(hostA), listenerHost(hostB)
	return hostA == hostB || hostA == "" && admin.LoopbackName(hostB) || hostB == "" && admin.LoopbackName(hostA)
}

// listenerHost returns the address of localhost, and "" for all interfaces.
func listenerHost(host string) string {
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return ""
	}
	if host == "localhost" {
		return "127.0.0.1"
	}
	return host
}
