package stetmetrics

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stet-go/stet/store"
)

const (
	// maxPages bounds how many pages a scan reads of each state.
	maxPages = 100
	// maxClasses bounds the series of each state. Further classes are counted as otherClass.
	maxClasses = 50
	otherClass = "(other)"
)

// scanned are the states that a scan reads.
var scanned = [...]store.State{store.Running, store.Unknown, store.Accepted}

// series are the labels of a gauge.
type series struct{ state, class string }

// count is the number of records of one series, and when the oldest was claimed.
type count struct {
	n     int
	first time.Time
}

// scan holds the gauges that a scan sets.
type scan struct {
	records, oldest *prometheus.GaugeVec
	total           *prometheus.CounterVec

	mu   sync.Mutex // held during a scan
	seen map[series]bool
}

// Scan counts the running, unknown and accepted records of the store and sets the gauges. It reads at most 100 pages
// of each state. The gauges have at most 51 classes for each state; one of them, "(other)", is for all further classes.
// Call Scan at intervals (once a minute in one process is enough), or use Watch.
func (m *Metrics) Scan(ctx context.Context, st store.Browser) error {
	m.scan.mu.Lock()
	defer m.scan.mu.Unlock()
	counts := make(map[series]count)
	result := "complete"
	for _, state := range scanned {
		whole, err := scanState(ctx, st, state, counts)
		if err != nil {
			m.scan.total.WithLabelValues("failed").Inc()
			return fmt.Errorf("stetmetrics: %w", err)
		}
		if !whole {
			result = "cut"
		}
	}
	m.scan.total.WithLabelValues(result).Inc()
	m.scan.set(counts)
	return nil
}

// scanState counts the records of a state by class. It reports whether it has read all of them.
func scanState(ctx context.Context, st store.Browser, state store.State, counts map[series]count) (whole bool, err error) {
	q := store.Query{States: []store.State{state}, Limit: store.MaxBrowse}
	counts[series{state: state.String()}] = count{} // is exported without records, too
	classes := 1
	for range maxPages {
		page, err := st.Browse(ctx, q)
		if err != nil {
			return false, err
		}
		for _, rec := range page.Records {
			s := series{state.String(), rec.Label.Class}
			if _, ok := counts[s]; !ok && classes == maxClasses {
				s.class = otherClass
			} else if !ok {
				classes++
			}
			c := counts[s]
			if c.n == 0 || rec.ClaimedAt.Before(c.first) {
				c.first = rec.ClaimedAt
			}
			c.n++
			counts[s] = c
		}
		if q.After = page.Next; q.After == "" {
			return true, nil
		}
	}
	return false, nil
}

// set sets the gauges, and removes series that have no records any more.
func (s *scan) set(counts map[series]count) {
	for k := range s.seen {
		if _, ok := counts[k]; !ok {
			s.records.DeleteLabelValues(k.state, k.class)
			s.oldest.DeleteLabelValues(k.state, k.class)
			delete(s.seen, k)
		}
	}
	for k, c := range counts {
		age := 0.0
		if c.n > 0 {
			age = max(0, time.Since(c.first).Seconds()) // the store's clock may be ahead
		}
		s.records.WithLabelValues(k.state, k.class).Set(float64(c.n))
		s.oldest.WithLabelValues(k.state, k.class).Set(age)
		s.seen[k] = true
	}
}

// Watch scans the store at once and then at intervals of every, until ctx ends. It counts failed
// scans and continues.
func (m *Metrics) Watch(ctx context.Context, store store.Browser, every time.Duration) {
	tick := time.NewTicker(max(every, time.Second))
	defer tick.Stop()
	for {
		_ = m.Scan(ctx, store) // counted
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
