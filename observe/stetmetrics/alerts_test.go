package stetmetrics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	goredis "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe/stetmetrics"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	stetgoredis "github.com/stet-go/stet/store/redis/goredis"
)

func TestAlertCases(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", "testdata/cases.yaml").CombinedOutput()
	if err != nil {
		t.Fatalf("promtool (run make services if there is none): %v\n%s", err, out)
	}
}

// scale is by how much the test divides all times of the rules.
const scale = 150

var (
	durations  = regexp.MustCompile(`\b(\d+)(m|h)\b`)
	pending    = regexp.MustCompile(`(?m)^        for: .*\n`)
	thresholds = regexp.MustCompile(`_seconds(\{[^}]*\}\)) > (\d+)`)
	alerts     = regexp.MustCompile(`(?m)^      - alert: (\w+)$`)
)

// fastRules returns the rules with shorter times, and the names of the alerts. They have no "for", which a slow scrape would
// begin again; testdata/cases.yaml tests it.
func fastRules(t *testing.T) (rules string, names []string) {
	t.Helper()
	text, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range alerts.FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	rules = durations.ReplaceAllStringFunc(pending.ReplaceAllString(string(text), ""), func(d string) string {
		long, _ := time.ParseDuration(d)
		return strconv.FormatInt((long/scale).Milliseconds(), 10) + "ms"
	})
	return thresholds.ReplaceAllStringFunc(rules, func(s string) string {
		m := thresholds.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2])
		return fmt.Sprintf("_seconds%s > %d", m[1], n/scale)
	}), names
}

// process is what Prometheus reads: a process with an engine.
type process struct {
	t       *testing.T
	metrics *stetmetrics.Metrics
}

func (p process) engine(s store.Store, o stet.Options) *stet.Engine {
	p.t.Helper()
	o.Observer, o.ErrorLog = p.metrics, slog.New(slog.DiscardHandler)
	return stettest.Engine(p.t, s, o)
}

// watch scans the store until the test ends.
func (p process) watch(s store.Browser) {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		p.metrics.Watch(ctx, s, time.Second)
	}()
	p.t.Cleanup(func() { cancel(); <-done })
}

func key(n int) stet.Op { return stet.Op{Scope: "s", Key: "k" + strconv.Itoa(n)} }

// A fault prepares a process, and returns a function that is called until its alert fires; nil for none.
var faults = map[string]func(process) func(n int){
	"StetOutcomeUnknown": func(p process) func(int) {
		s := memory.New(memory.Options{})
		p.engine(s, stet.Options{SweepEvery: 100 * time.Millisecond})
		_, _ = s.Claim(p.t.Context(), store.ClaimRequest{ID: store.ID{1}, Owner: store.NewOwner(), Lease: time.Second}) // its process is gone
		p.watch(s)
		return nil
	},
	"StetStoreFailing": func(p process) func(int) { return p.withoutStore(stethttp.Options{}) },
	"StetUnprotected":  func(p process) func(int) { return p.withoutStore(stethttp.Options{FailOpen: true}) },
	"StetScanFailing":  func(p process) func(int) { p.withoutStore(stethttp.Options{}); return nil },
	"StetOldestRun": func(p process) func(int) {
		s := memory.New(memory.Options{})
		if _, err := p.engine(s, stet.Options{}).Begin(p.t.Context(), key(1)); err != nil {
			p.t.Fatal(err)
		}
		p.watch(s)
		return nil
	},
	"StetBacklogOld": func(p process) func(int) {
		s := memory.New(memory.Options{})
		p.accept(p.engine(s, stet.Options{}), 1)
		p.watch(s)
		return nil
	},
	"StetBacklogGrowing": func(p process) func(int) {
		s := memory.New(memory.Options{})
		e := p.engine(s, stet.Options{})
		p.watch(s)
		return func(n int) {
			for i := range 20 {
				p.accept(e, 20*n+i)
			}
		}
	},
	"StetLeasesLost": func(p process) func(int) {
		e := p.engine(stalled{memory.New(memory.Options{})}, stet.Options{Policy: stet.Policy{Lease: store.MinLease}})
		return func(n int) { _, _ = stet.Do(p.t.Context(), e, key(n), untilCancelled) }
	},
	"StetRunsTimedOut": func(p process) func(int) {
		e := p.engine(memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{RunTimeout: 10 * time.Millisecond}})
		return func(n int) { _, _ = stet.Do(p.t.Context(), e, key(n), untilCancelled) }
	},
	"StetTransactionsAborted": func(p process) func(int) {
		pool, err := pgxpool.New(p.t.Context(), rig.Postgres(p.t).Database(p.t))
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(pool.Close)
		if err := postgres.Migrate(p.t.Context(), pool, postgres.Options{}); err != nil {
			p.t.Fatal(err)
		}
		s, err := postgres.New(p.t.Context(), pool, postgres.Options{})
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { _ = s.Close() })
		te := stettest.TxEngine(p.engine(s, stet.Options{}), s)
		return func(n int) {
			_, _ = stet.DoTx(p.t.Context(), te, key(n), func(ctx context.Context, tx pgx.Tx) (int, error) {
				_, _ = tx.Exec(ctx, "SELECT 1/0") // the handler ignores the error
				return 0, nil
			})
		}
	},
	"StetMessagesUnsent": func(p process) func(int) {
		e := p.engine(memory.New(memory.Options{}), stet.Options{})
		refuse := func(context.Context, []stet.Message) error { return errors.New("the broker is full") }
		r, err := stetmsg.NewRelay(e, refuse, stetmsg.RelayOptions{ErrorLog: slog.New(slog.DiscardHandler)})
		if err != nil {
			p.t.Fatal(err)
		}
		return func(n int) {
			_, _ = stet.Do(p.t.Context(), e, key(n), func(ctx context.Context) (int, error) {
				return 0, stet.FromContext(ctx).Emit(stet.Message{To: "orders", Body: []byte("paid")})
			})
			_, _ = r.Once(p.t.Context())
		}
	},
	"StetMismatches": func(p process) func(int) {
		e := p.engine(memory.New(memory.Options{}), stet.Options{})
		return func(n int) {
			op := key(1)
			op.Fingerprint = stet.NewFingerprint([]byte(strconv.Itoa(n)))
			_, _ = stet.Do(p.t.Context(), e, op, nothing)
		}
	},
	"StetSweepBehind": func(p process) func(int) {
		p.engine(behind{memory.New(memory.Options{})}, stet.Options{SweepEvery: 100 * time.Millisecond})
		return nil
	},
}

// withoutStore is a service whose Redis is stopped after the first request and the first scan.
func (p process) withoutStore(o stethttp.Options) func(int) {
	server := rig.NewRedis(p.t, rig.RedisOptions{})
	conn, err := stetgoredis.Open(&goredis.UniversalOptions{Addrs: []string{server.Addr()}, DialTimeout: time.Second})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	s, err := redis.New(p.t.Context(), conn, redis.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = s.Close() })
	o.Scope = func(*http.Request) (string, error) { return "s", nil }
	m, err := stethttp.New(p.engine(s, stet.Options{SweepEvery: -1}), o)
	if err != nil {
		p.t.Fatal(err)
	}
	h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err := p.metrics.Scan(p.t.Context(), s); err != nil {
		p.t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		p.t.Fatal(err)
	}
	p.watch(s)
	return func(n int) {
		r := httptest.NewRequestWithContext(p.t.Context(), http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", strconv.Itoa(n))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}

func (p process) accept(e *stet.Engine, n int) {
	op := key(n)
	if _, err := e.Accept(p.t.Context(), op, stet.Work{Name: "ship"}); err != nil && p.t.Context().Err() == nil {
		p.t.Error(err)
	}
}

func untilCancelled(ctx context.Context) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// stalled is a store that answers no heartbeat.
type stalled struct{ *memory.Store }

func (s stalled) Extend(ctx context.Context, _ []store.Claim, _ time.Duration) ([]store.Claim, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// behind is a store with more to sweep than a sweep does.
type behind struct{ *memory.Store }

func (behind) Sweep(context.Context, int) (store.Swept, error) { return store.Swept{More: true}, nil }

// TestEachAlertFires causes the fault of each rule in a process of its own, which a real Prometheus reads.
// At the end all processes are gone.
func TestEachAlertFires(t *testing.T) {
	rules, names := fastRules(t)
	config := "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\nrule_files: [rules.yml]\nscrape_configs:\n"
	var servers []*httptest.Server
	for _, alert := range slices.Sorted(maps.Keys(faults)) {
		registry := prometheus.NewRegistry()
		metrics, err := stetmetrics.New(registry)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		t.Cleanup(server.Close)
		servers = append(servers, server)
		config += fmt.Sprintf("- {job_name: %s, static_configs: [{targets: [%q]}]}\n", alert, server.Listener.Addr())
		repeat(t, faults[alert](process{t, metrics}))
	}
	p := rig.NewPrometheus(t, config, rules)
	for _, alert := range names {
		if alert == "StetProcessesGone" {
			continue
		}
		if faults[alert] == nil {
			t.Errorf("%s has no fault in this test", alert)
			continue
		}
		stettest.Eventually(t, alert, func() bool { return slices.Contains(firing(t, p, alert), alert) })
	}
	if got := firing(t, p, "StetProcessesGone"); len(got) > 0 {
		t.Error("StetProcessesGone fires while there are processes")
	}
	for _, server := range servers {
		server.CloseClientConnections()
		server.Close()
	}
	stettest.Eventually(t, "StetProcessesGone", func() bool { return len(firing(t, p, "StetProcessesGone")) > 0 })
}

// repeat calls f until the test ends.
func repeat(t *testing.T, f func(n int)) {
	if f == nil {
		return
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				f(n)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// firing returns the jobs of which the alert fires.
func firing(t *testing.T, p *rig.PrometheusServer, alert string) (jobs []string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+"/api/v1/alerts", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var got struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	for _, a := range got.Data.Alerts {
		if a.State == "firing" && a.Labels["alertname"] == alert {
			jobs = append(jobs, a.Labels["job"])
		}
	}
	return jobs
}

// TestEachAlertHasASectionInThePage also holds the page to the alerts that exist.
func TestEachAlertHasASectionInThePage(t *testing.T) {
	_, names := fastRules(t)
	page, err := os.ReadFile("../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(page), -1) {
		sections = append(sections, m[1])
	}
	if !slices.Equal(sections, names) {
		t.Errorf("the page has sections for %v, and the alerts are %v", sections, names)
	}
}
