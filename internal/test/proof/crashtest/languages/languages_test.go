package languages

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

var (
	serviceKills = flag.Int("kills", 12, "how many services are killed in each crash test")
	sidecarKills = flag.Int("sidecar-kills", 6, "how many sidecars are killed")
	serverKills  = flag.Int("server-kills", 1, "how often PostgreSQL is killed in each crash test")
	pauses       = flag.Int("pauses", 1, "how many processes are stopped for longer than a lease, in each crash test")
)

func TestMain(m *testing.M) {
	inGo() // in a child
	os.Exit(rig.Main(m).Run())
}

// language is how services are started.
type language struct {
	name    string
	kinds   []string // one for each service
	prepare func(t *testing.T) func(kind string) child.Command
}

var (
	python = language{"python", []string{"fastapi", "flask", "fastapi:statements", "flask:statements"}, func(t *testing.T) func(string) child.Command {
		const program = "/usr/bin/python3"
		if out, err := exec.Command(program, "-c", "import fastapi, flask, psycopg, uvicorn").CombinedOutput(); err != nil {
			t.Fatalf("%s lacks packages; run: make services (%v: %s)", program, err, out)
		}
		return func(string) child.Command {
			return foreign([]string{"PYTHONPATH=" + filepath.Join(root(t), "clients", "python"), "PYTHONDONTWRITEBYTECODE=1"}, program, "service.py")
		}
	}}
	node = language{"node", []string{"express", "fastify"}, func(t *testing.T) func(string) child.Command {
		dir := install(t)
		return func(string) child.Command { return foreign(nil, "node", filepath.Join(dir, "service.js")) }
	}}
)

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// install installs the package for Node beside the service.
func install(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	rig.Run(t, filepath.Join(root(t), "clients", "js"), nil, "npm", "pack", "--pack-destination", dir, "--loglevel=error")
	packed, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatalf("npm pack made %v, %v", packed, err)
	}
	program, err := os.ReadFile("service.js")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"service.js": program, "package.json": []byte(`{"private": true, "type": "module"}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rig.Run(t, dir, nil, "npm", "install", "--no-package-lock", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error",
		packed[0], "express@5.3.0", "fastify@5.12.8", "pg@8.23.1")
	return dir
}

// newKiller starts a PostgreSQL server with a new database.
func newKiller(t *testing.T) *killer {
	t.Helper()
	server := rig.NewPostgres(t, rig.PostgresOptions{})
	s := &killer{lanes: map[*crashtest.Lane]*lane{}, server: server, url: server.Database(t), serverKills: *serverKills, pauses: *pauses}
	pool, err := pgxpool.New(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Migrate(t.Context(), pool, postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	return s
}

func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// services adds services to a crash test, each at an address of its own.
func (s *killer) services(t *testing.T, l language, kills plan, env ...string) (added []*lane) {
	t.Helper()
	command := l.prepare(t)
	url := strings.Replace(s.url, "postgres@", "shop@", 1)
	for _, kind := range l.kinds {
		addr := freeAddr(t)
		_, port, _ := strings.Cut(addr, ":")
		added = append(added, s.add(addr, kills, func(die string) child.Command {
			cmd := command(kind)
			cmd.Env = slices.Concat(cmd.Env, env, []string{"DATABASE_URL=" + url, "FLAVOUR=" + kind, "PORT=" + port, "DIE=" + die})
			return cmd
		}))
	}
	return added
}

// sidecars adds one before each of the services.
func (s *killer) sidecars(t *testing.T, services []*lane, kills plan) {
	t.Helper()
	program := rig.Stet(t)
	for _, service := range services {
		addr := freeAddr(t)
		config := filepath.Join(t.TempDir(), "stet.yaml")
		text := fmt.Sprintf("store: %s\nupstream: {url: http://%s}\nlisten: %s\nscope: header:X-Account\nroutes: [{path: /payments, settles: service, lease: %v, timeout: %v}]\n",
			s.url, service.Addr, addr, lease, lease)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.add(addr, kills, func(string) child.Command {
			return foreign(nil, program, "proxy", "--config", config, "--admin-listen", "off")
		})
		s.fronts = append(s.fronts, addr)
	}
}

// total is what the crash tests of a language have come to.
type total struct {
	kills, sidecars, servers, brokers, pauses, keys, perhaps int
	findings
}

func (o *total) add(s *killer, v findings) {
	tally := s.Tally()
	o.servers += tally.Restarts - s.brokers
	o.brokers += s.brokers
	o.pauses += tally.Stops
	o.keys += len(s.keys)
	o.perhaps += s.perhaps
	o.Twice, o.Lost, o.Unknown, o.Changed = append(o.Twice, v.Twice...), append(o.Lost, v.Lost...), append(o.Unknown, v.Unknown...), append(o.Changed, v.Changed...)
}

// print prints the figures, and fails if a promise was broken.
func (o *total) print(t *testing.T, name string) {
	t.Helper()
	for _, f := range []struct {
		name string
		n    int
		unit string
	}{{"kills", o.kills, "kills of services"}, {"sidecar_kills", o.sidecars, "kills of sidecars"}, {"postgres_kills", o.servers, "kills of PostgreSQL"}, {"broker_kills", o.brokers, "kills of RabbitMQ"},
		{"pauses", o.pauses, "processes stopped for longer than a lease"}, {"payments", o.keys, "keys"}, {"answered_unknown", o.perhaps, "answers, for the time being"},
		{"changed", len(o.Changed), "keys"}, {"executed_twice", len(o.Twice), "keys"}, {"lost", len(o.Lost), "keys"}, {"unknown", len(o.Unknown), "keys or records"}} {
		fmt.Printf("figure: %s_%s = %d %s\n", name, f.name, f.n, f.unit)
	}
	for i, line := range o.all() {
		if i < 20 {
			t.Error(line)
		}
	}
	if o.keys < o.kills {
		t.Errorf("only %d keys", o.keys)
	}
}

// Services that take part by SQL, alone and then behind sidecars, are killed at every
// point of a request; so are sidecars and PostgreSQL.
func crashTest(t *testing.T, l language) {
	var all total
	alone := newKiller(t)
	kills := newPlan(*serviceKills*2/3, points)
	for _, service := range alone.services(t, l, kills) {
		alone.fronts = append(alone.fronts, service.Addr)
	}
	alone.serverKills -= *serverKills / 3
	alone.during(t)
	t.Logf("alone: %v", alone.Tally().At)
	v, _ := alone.judged(t)
	all.add(alone, v)

	behind := newKiller(t)
	behind.serverKills = *serverKills / 3
	rest, sidecars := newPlan(*serviceKills-*serviceKills*2/3, points), newPlan(*sidecarKills, outside)
	behind.sidecars(t, behind.services(t, l, rest, "SIDECAR=1"), sidecars)
	behind.during(t)
	t.Logf("behind the sidecar: %v", behind.Tally().At)
	v, _ = behind.judged(t)
	all.add(behind, v)

	all.kills, all.sidecars = kills.kills+rest.kills, sidecars.kills
	all.print(t, l.name)
}

func TestPythonPaysOnce_AnyProcessDies(t *testing.T) { crashTest(t, python) }
func TestNodePaysOnce_AnyProcessDies(t *testing.T)   { crashTest(t, node) }

// The judge sees what a service does that commits its payment before the outcome.
func TestServiceThatPaysInAnotherTransactionIsFound(t *testing.T) {
	s := newKiller(t)
	s.serverKills, s.pauses = 0, 0
	for _, service := range s.services(t, language{"python", []string{"fastapi"}, python.prepare}, newPlan(4, []fault.Point{"written", "settle.before"}), "DEFECT=apart") {
		s.fronts = append(s.fronts, service.Addr)
	}
	s.during(t)
	if v, _ := s.judged(t); len(v.Twice) == 0 {
		t.Errorf("the judge finds %+v; want payments made twice", v)
	}
}
