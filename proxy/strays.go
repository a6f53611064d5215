package proxy

import (
	"context"
	"log/slog"
	"time"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// How often the log tells of accepted operations that nothing here runs: after each look,
// and of one name; of so many names; and how long those of a worker elsewhere may wait.
const (
	straysEvery = time.Minute
	strayRest   = 10 * time.Minute
	maxStrays   = 1000
	strayAfter  = time.Minute
)

// strays tells of accepted operations that nothing here hands to the service: their route
// is not there any more, or the workers are elsewhere and have not begun them.
type strays struct {
	store  store.Browser
	log    *slog.Logger
	routes map[string]bool // by their names: whether this process hands their operations over
	said   map[string]time.Time
}

// watchStrays has the generation tell of them.
func (p *Proxy) watchStrays(g *generation) {
	b, ok := store.As[store.Browser](p.store)
	if !ok || p.o.Parts&Workers == 0 {
		return
	}
	s := &strays{store: b, log: p.o.ErrorLog, routes: map[string]bool{}, said: map[string]time.Time{}}
	for _, r := range g.config.Routes {
		if r.Async != nil {
			s.routes[r.class()] = g.config.Worker != workerElsewhere
		}
	}
	g.parts = append(g.parts, part{"watch of what was accepted", s.run})
}

func (s *strays) run(ctx context.Context) error {
	for {
		s.look(ctx)
		if !timer.Sleep(ctx, timer.Around(straysEvery)) {
			return nil
		}
	}
}

// look goes through those that have waited longest.
func (s *strays) look(ctx context.Context) {
	for _, rec := range s.browse(ctx, 0) {
		if _, known := s.routes[rec.Label.Name]; !known {
			s.tell(ctx, rec.Label.Name, "proxy: accepted operations have no route here that hands them to the service; they stay accepted until one of that name has async again, or they are cancelled")
		}
	}
	for _, rec := range s.browse(ctx, strayAfter) {
		if here, known := s.routes[rec.Label.Name]; known && !here && rec.Attempt == 0 {
			s.tell(ctx, rec.Label.Name, "proxy: accepted operations wait for a worker, which is elsewhere: 'stet worker' has to run, and to reach the service")
		}
	}
}

// browse returns accepted operations. Where the store does not answer, others say so.
func (s *strays) browse(ctx context.Context, olderThan time.Duration) []store.Record {
	page, err := s.store.Browse(ctx, store.Query{States: []store.State{store.Accepted}, OlderThan: olderThan, Limit: store.MaxBrowse})
	if err != nil {
		return nil
	}
	return page.Records
}

func (s *strays) tell(ctx context.Context, name, what string) {
	if len(s.said) >= maxStrays || time.Since(s.said[name]) < strayRest {
		return
	}
	s.said[name] = time.Now()
	s.log.ErrorContext(ctx, what, slog.String("name", name))
}
