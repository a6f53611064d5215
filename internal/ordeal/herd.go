package ordeal

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

// Herd is a storm of another kind: very many callers at once.
type Herd struct {
	Callers int // all at once
	Keys    int // that they share
	Pool    int // connections of each service; 0: the library's default
}

const herdTimeout = 2 * time.Minute // of one request

// RunHerd has h.Callers pay at once, on the services of cfg, of which each dies
// after its first charge and is started anew. Other faults of cfg do not happen.
func RunHerd(ctx context.Context, cfg Config, h Herd) (rep Report, err error) {
	cfg.Kills, cfg.ServerKills, cfg.NetworkFaults, cfg.Stops, cfg.Fills = 1, 0, 0, 0, 0
	if cfg, err = cfg.check(); err != nil {
		return rep, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, errors.New("the herd has not come through in time"))
	defer cancel()
	s, err := newStorm(ctx, cfg, &rep)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	defer s.stopAll()
	s.clients.http.CloseIdleConnections()
	streams := &http.Transport{Protocols: new(http.Protocols)}
	streams.Protocols.SetUnencryptedHTTP2(true)
	s.clients.http = &http.Client{Transport: streams, Timeout: herdTimeout}
	for _, l := range s.lanes {
		o := s.order(visit{fault.HandlerAfter, 1})
		o.Place.Pool, o.Hasty = h.Pool, false
		if err := l.start(ctx, o); err != nil {
			return rep, err
		}
	}
	var callers sync.WaitGroup
	payments := make([]payment, h.Keys)
	for i := range payments {
		payments[i] = payment{"shop-a", stet.NewKey(), 3} // takes a while
		s.clients.remember(payments[i])
	}
	for i := range h.Callers {
		callers.Go(func() { s.clients.pay(ctx, payments[i%len(payments)]) })
	}
	through := make(chan struct{})
	revivals := make(chan error, len(s.lanes))
	for _, l := range s.lanes {
		go func() { // ends with the callers, who end with ctx
			err := l.revive(ctx, through)
			if err != nil {
				cancel()
			}
			revivals <- err
		}()
	}
	callers.Wait()
	close(through)
	for range s.lanes {
		err = errors.Join(err, <-revivals)
	}
	s.stopAll()
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return rep, err
	}
	rep.Verdict, err = s.judge(ctx)
	return rep, err
}

// revive starts a service anew when it has died, unless the herd is through.
func (l *lane) revive(ctx context.Context, through <-chan struct{}) error {
	p := l.process()
	select {
	case <-through:
		return nil
	case <-p.Exited():
	}
	l.count(func(r *Report) { r.Kills++; r.At[fault.HandlerAfter]++ })
	return l.start(ctx, l.order(visit{}))
}
