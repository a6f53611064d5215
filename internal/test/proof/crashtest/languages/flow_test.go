package languages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// flow has the processes around services: sidecars that accept, and workers.
type flow struct {
	killer  *killer
	program string
	store   string
	route   string // more of the route
}

// aside adds a process of stet to a crash test.
func (f *flow) aside(t *testing.T, addr, upstream, worker, command string, kills plan) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "stet.yaml")
	text := fmt.Sprintf(`store: %s
upstream: {url: http://%s}
listen: %s
scope: header:X-Account
worker: %s
drain: 2s
routes:
  - {path: /payments, lease: %v, timeout: %v%s, async: {min_backoff: 20ms, max_backoff: 500ms, max_attempts: 1000000, concurrency: 8}}
`, f.store, upstream, addr, worker, lease, lease, f.route)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.killer.add(addr, kills, func(string) child.Command {
		return foreign(nil, f.program, command, "--config", config, "--admin-listen", "off")
	})
}

// before adds a sidecar before each service, the first with a worker inside, and two
// workers beside them.
func (f *flow) before(t *testing.T, services []*lane, sidecars, workers plan) {
	t.Helper()
	for i, service := range services {
		addr := freeAddr(t)
		worker := "inside"
		if i > 0 {
			worker = "elsewhere"
		}
		f.aside(t, addr, service.Addr, worker, "proxy", sidecars)
		f.killer.fronts = append(f.killer.fronts, addr)
	}
	for i := range 2 {
		f.aside(t, freeAddr(t), services[i%len(services)].Addr, "elsewhere", "worker", workers)
	}
}

// besides is how many processes of stet of a kind are killed, if there are so many kinds
// in this half.
func besides(kinds int) plan { return newPlan(*sidecarKills/2/kinds, outside) }

// Operations are accepted with 202 by sidecars, and asked for by messages, and paid by services
// that settle by SQL. Services, sidecars, workers, consumers, PostgreSQL and RabbitMQ are killed, and stopped for longer than a
// lease; nothing is ever unknown.
func flowSettled(t *testing.T, all *total) {
	s := newKiller(t)
	s.prefer = "wait=1"
	s.serverKills = (*serverKills + 2) / 3
	s.broker, s.brokerKills = rig.NewRabbitMQ(t, rig.RabbitMQOptions{}), *serverKills-s.serverKills-*serverKills/3
	services, sidecars, workers, consumers := newPlan(*serviceKills/2, points), besides(3), besides(3), besides(3)
	of := func(l language, kind string) language { return language{l.name, []string{kind}, l.prepare} }
	lanes := append(s.services(t, of(python, "fastapi"), services, "SIDECAR=1"), s.services(t, of(node, "express"), services, "SIDECAR=1")...)
	f := &flow{killer: s, program: rig.Stet(t), store: s.url, route: ", settles: service"}
	f.before(t, lanes, sidecars, workers)
	m := f.consumers(t, lanes, consumers)
	s.during(t)
	v, by := s.judged(t)
	t.Logf("settled by %v, %d of them for messages; killed: %v", by, len(m.keys), s.Tally().At)
	if s.perhaps > 0 {
		v.Unknown = append(v.Unknown, fmt.Sprintf("%d answers said that an outcome is unknown", s.perhaps))
	}
	all.kills += services.kills
	all.sidecars += sidecars.kills + workers.kills + consumers.kills
	perhaps := all.perhaps
	all.add(s, v)
	all.perhaps = perhaps
}

// Operations are accepted on SQLite, and paid by a service that does not know of stet's
// store, and can be asked what became of a run.
func flowVerified(t *testing.T, all *total) {
	s := newKiller(t)
	s.prefer = "wait=1"
	s.serverKills = *serverKills / 3
	conn, err := pgx.Connect(t.Context(), s.url)
	if err == nil {
		_, err = conn.Exec(t.Context(), verifiedSchema)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context())
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	services, sidecars, workers := newPlan(*serviceKills-*serviceKills/2, verifiedPoints), besides(2), besides(2)
	l := language{"go", []string{"verified"}, func(*testing.T) func(string) child.Command {
		return func(string) child.Command { return foreign([]string{"LANGUAGES_BE=verified"}, program) }
	}}
	lanes := s.services(t, l, services)
	lanes[0].owner(s.url)
	file := filepath.Join(t.TempDir(), "stet.db")
	f := &flow{killer: s, program: rig.Stet(t), store: file, route: ", verify: {url: /verify}"}
	f.before(t, append(lanes, lanes[0]), sidecars, workers)
	s.during(t)
	t.Logf("killed: %v", s.Tally().At)
	v, _ := s.judged(t)
	unknown, err := unresolved(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	v.Unknown = append(v.Unknown, unknown...)
	all.kills += services.kills
	all.sidecars += sidecars.kills + workers.kills
	all.add(s, v)
}

// unresolved are the records of a file that are unknown.
func unresolved(ctx context.Context, file string) (all []string, err error) {
	s, err := sqlite.Open(ctx, file, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	page, err := s.Browse(ctx, store.Query{States: []store.State{store.Unknown}})
	for _, rec := range page.Records {
		all = append(all, rec.ID.String()+" is unknown")
	}
	return all, err
}

func TestAcceptedOrderIsPaidOnce_AnyProcessDies(t *testing.T) {
	var all total
	flowSettled(t, &all)
	flowVerified(t, &all)
	all.print(t, "flow")
}
