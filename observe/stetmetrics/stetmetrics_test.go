package stetmetrics_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/observe/stetmetrics"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

func op(key string) stet.Op {
	return stet.Op{Scope: "canary-scope", Key: "canary-" + key, Class: "pay"}
}

func nothing(context.Context) (int, error) { return 0, nil }

func start(t *testing.T, store store.Store) (*stet.Engine, *stetmetrics.Metrics, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	m, err := stetmetrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	e := stettest.Engine(t, store, stet.Options{Observer: m, SweepEvery: -1, Classes: map[string]stet.Policy{"pay": {}}})
	return e, m, reg
}

func TestEventsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e, m, reg := start(t, st)
		ctx := t.Context()
		_, _ = stet.Do(ctx, e, op("a"), nothing)
		_, _ = stet.Do(ctx, e, op("a"), nothing)
		_, _ = stet.Do(ctx, e, op("b"), func(context.Context) (int, error) { return 0, stet.Retryable(errors.New("busy")) })
		_, _ = stet.Do(ctx, e, op("c"), func(context.Context) (int, error) { return 0, errors.New("declined") })
		dead, _ := st.Claim(ctx, store.ClaimRequest{ID: e.ID("s", "dead"), Owner: store.NewOwner(), Lease: time.Second})
		_, _ = st.Claim(ctx, store.ClaimRequest{ID: e.ID("s", "live"), Owner: store.NewOwner(), Lease: time.Hour})
		time.Sleep(time.Minute)
		_, _ = st.Sweep(ctx, 100)
		m.Observe(ctx, observe.Event{Kind: observe.Swept, Swept: store.Swept{MarkedUnknown: 1, More: true}})
		if err := m.Scan(ctx, st); err != nil || dead.Fence == 0 {
			t.Fatal(err)
		}
		want := `
# HELP stet_events_total What happened to operations, by the name of the event.
# TYPE stet_events_total counter
stet_events_total{class="",event="swept"} 1
stet_events_total{class="pay",event="claimed"} 3
stet_events_total{class="pay",event="released"} 1
stet_events_total{class="pay",event="replayed"} 1
stet_events_total{class="pay",event="settled"} 2
# HELP stet_oldest_record_seconds Time since the oldest record of that state and class was claimed or accepted, as last scanned.
# TYPE stet_oldest_record_seconds gauge
stet_oldest_record_seconds{class="",state="accepted"} 0
stet_oldest_record_seconds{class="",state="running"} 60
stet_oldest_record_seconds{class="",state="unknown"} 60
# HELP stet_records Records that are not settled, by state and class, as last scanned: running, unknown, accepted.
# TYPE stet_records gauge
stet_records{class="",state="accepted"} 0
stet_records{class="",state="running"} 1
stet_records{class="",state="unknown"} 1
# HELP stet_runs_ended_total Runs that have ended, by the state of their record.
# TYPE stet_runs_ended_total counter
stet_runs_ended_total{class="pay",state="completed"} 1
stet_runs_ended_total{class="pay",state="failed"} 1
stet_runs_ended_total{class="pay",state="retryable"} 1
# HELP stet_sweep_behind 1 if the last sweep left something to do.
# TYPE stet_sweep_behind gauge
stet_sweep_behind 1
`
		err := testutil.GatherAndCompare(reg, strings.NewReader(want), "stet_events_total", "stet_oldest_record_seconds",
			"stet_records", "stet_runs_ended_total", "stet_sweep_behind")
		if err != nil {
			t.Error(err)
		}
	})
}

// slow is a store that takes its time to grant a claim.
type slow struct{ *memory.Store }

func (s slow) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	time.Sleep(20 * time.Millisecond)
	return s.Store.Claim(ctx, req)
}

func TestDurationOfClaimsIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, reg := start(t, slow{memory.New(memory.Options{})})
		for range 2 { // the second is a replay, and claims nothing
			if _, err := stet.Do(t.Context(), e, op("a"), nothing); err != nil {
				t.Fatal(err)
			}
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "stet_claim_seconds" {
				continue
			}
			if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 0.02 {
				t.Errorf("%d claims took %v s together; want one of 0.02", h.GetSampleCount(), h.GetSampleSum())
			}
			return
		}
		t.Error("there is no stet_claim_seconds")
	})
}

// broken is a store that cannot be looked through.
type broken struct{ *memory.Store }

func (broken) Browse(context.Context, store.Query) (store.Page, error) {
	return store.Page{}, errors.New("the store is down")
}

// endless is a store that has always more to look at.
type endless struct{ *memory.Store }

func (endless) Browse(context.Context, store.Query) (store.Page, error) {
	return store.Page{Next: "more"}, nil
}

func TestScansAreBoundedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, m, reg := start(t, memory.New(memory.Options{}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Watch(ctx, broken{}, time.Minute)
		}()
		time.Sleep(90 * time.Second)
		cancel()
		<-done
		if err := m.Scan(t.Context(), endless{}); err != nil {
			t.Error(err)
		}
		want := `
# HELP stet_scans_total Scans of the store, by how they ended: complete, cut, failed.
# TYPE stet_scans_total counter
stet_scans_total{result="cut"} 1
stet_scans_total{result="failed"} 2
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "stet_scans_total"); err != nil {
			t.Error(err)
		}
	})
}

func TestRegisteringTwiceIsAnError(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := stetmetrics.New(reg); err != nil {
		t.Fatal(err)
	}
	if _, err := stetmetrics.New(reg); err == nil {
		t.Error("no error")
	}
}

// TestLabelsHaveNoContentOfClients also bounds how many series there can be.
func TestLabelsHaveNoContentOfClients(t *testing.T) {
	e, _, reg := start(t, memory.New(memory.Options{}))
	for _, key := range []string{"1", "2", "3", "4"} {
		_, _ = stet.Do(t.Context(), e, op(key), nothing)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n > 3 || strings.Contains(f.String(), "canary") {
			t.Errorf("%s has %d series: %v", f.GetName(), n, f)
		}
	}
}

var used = regexp.MustCompile(`stet_[a-z_]+`)

// TestDashboardAndAlertsUseMetricsThatExist reads the names out of the files.
func TestDashboardAndAlertsUseMetricsThatExist(t *testing.T) {
	source, err := os.ReadFile("stetmetrics.go")
	if err != nil {
		t.Fatal(err)
	}
	events := map[string]bool{}
	for k := observe.Claimed; k <= observe.Aborted; k++ {
		events[k.String()] = true
	}
	for _, file := range []string{"dashboard.json", "alerts.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := used.FindAllString(string(text), -1)
		if len(names) < 5 {
			t.Errorf("%s uses %d metrics", file, len(names))
		}
		for _, name := range names {
			name = strings.TrimSuffix(strings.TrimPrefix(name, "stet_"), "_bucket")
			if !strings.Contains(string(source), `"`+name+`"`) {
				t.Errorf("%s uses %s, which does not exist", file, name)
			}
		}
		for _, m := range regexp.MustCompile(`event=~?\\?"([a-z_|]+)`).FindAllStringSubmatch(string(text), -1) {
			for name := range strings.SplitSeq(m[1], "|") {
				if !events[name] {
					t.Errorf("%s looks for the event %q, which does not exist", file, name)
				}
			}
		}
	}
}
