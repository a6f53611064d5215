package payments

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
)

// Herd is a load test of another kind: very many callers at once.
type Herd struct {
	Callers int // all at once
	Keys    int // that they share
	Pool    int // connections of each service; 0: the library's default
}

const herdTimeout = 2 * time.Minute // of one request

// RunHerd has h.Callers pay at once, on the services of cfg, of which each dies
// after its first charge and is started anew. Other faults of cfg do not happen.
func RunHerd(ctx context.Context, cfg Config, h Herd) (rep crashtest.Report, err error) {
	cfg.Kills, cfg.ServerKills, cfg.NetworkFaults, cfg.Stops, cfg.Fills = 0, 0, 0, 0, 0
	cfg.herd = &h
	return run(ctx, cfg, func(ctx context.Context, s *loadTest) error {
		s.clients.http.CloseIdleConnections()
		streams := &http.Transport{Protocols: new(http.Protocols)}
		streams.Protocols.SetUnencryptedHTTP2(true)
		s.clients.http = &http.Client{Transport: streams, Timeout: herdTimeout}
		payments := make([]payment, h.Keys)
		for i := range payments {
			payments[i] = payment{"shop-a", stet.NewKey(), 3} // takes a while
			s.clients.remember(payments[i])
		}
		var callers sync.WaitGroup
		for i := range h.Callers {
			callers.Go(func() { s.clients.pay(ctx, payments[i%len(payments)]) })
		}
		callers.Wait()
		return context.Cause(ctx)
	})
}

// plan has each process of a herd die after its first charge, and the next one
// live.
func (h *Herd) plan(services int) *crashtest.Plan {
	return crashtest.NewPlan(rand.New(rand.NewPCG(0, 0)), services, []crashtest.Visit{{Point: fault.HandlerAfter, N: 1}}, nil)
}
