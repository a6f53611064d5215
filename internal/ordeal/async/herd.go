package async

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/stet-go/stet/internal/rig"
)

// Herd has callers order the same thing for the first time, all at once, over the
// APIs of a flavour, n times for each kind of operation, and nobody is killed.
func Herd(ctx context.Context, r *rig.Rig, cfg Config, callers, n int) (rep Report, err error) {
	cfg.Kills, cfg.Restarts = 0, 0
	s, err := newStorm(ctx, r, cfg)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, s.servers.close()) }()
	defer s.clients.close()
	err = s.live(ctx, func(ctx context.Context, _ context.CancelCauseFunc) {
		for _, addr := range s.clients.addrs {
			s.clients.awaitAPI(ctx, addr)
		}
		for _, kind := range s.f.kinds {
			for range n {
				op := s.clients.invent()
				op.kind, op.cancels = kind, false
				s.clients.rush(ctx, op, callers)
				s.clients.want(ctx, op, 1)
			}
		}
	})
	return s.end(ctx, err)
}

// awaitAPI waits until something answers at an address.
func (c *clients) awaitAPI(ctx context.Context, addr string) {
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+statusPath, nil)
		if err != nil {
			panic(err) // no address of ours is like that
		}
		if res, err := c.http.Do(req); err == nil {
			_ = res.Body.Close()
			return
		}
		pause(ctx, firstBackoff)
	}
}

// rush has callers order at the same moment, each once. All must be told that it
// is accepted.
func (c *clients) rush(ctx context.Context, op *operation, callers int) {
	start := make(chan struct{})
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			<-start
			if a, ok := c.send(ctx, op, http.MethodPost, orderPath+op.kind, ""); !ok || a.status != http.StatusAccepted {
				op.accuse("one of %d callers at the same moment was told %d: %s", callers, a.status, a.body)
			} else {
				op.judgeOrder(a)
			}
		})
	}
	close(start)
	all.Wait()
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.fresh != 1 {
		op.accuseLocked("%d of %d callers were told that they had accepted it", op.fresh, callers)
	}
}
