package async

import (
	"context"
	"fmt"
	"net/http"

	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
)

// Herd has callers order the same thing for the first time, all at once, over the
// APIs of a flavour, n times for each kind of operation, without kills.
func Herd(ctx context.Context, r *rig.Rig, cfg Config, callers, n int) (rep Report, err error) {
	cfg.Kills, cfg.Restarts = 0, 0
	var refused []crashtest.Violation
	rep, err = run(ctx, r, cfg, func(ctx context.Context, s *loadTest) error {
		for _, addr := range s.clients.addrs {
			s.clients.awaitAPI(ctx, addr)
		}
		for _, kind := range s.f.kinds {
			for range n {
				op := s.clients.invent()
				op.kind, op.cancels = kind, false
				if fresh := s.clients.rush(ctx, op, callers); fresh != 1 {
					refused = append(refused, crashtest.Violation{Promise: crashtest.Stable,
						Detail: fmt.Sprintf("%s: %d of %d callers at the same moment got a new acceptance", op.key, fresh, callers)})
				}
				s.clients.want(ctx, op, 1)
			}
		}
		return context.Cause(ctx)
	})
	rep.Violations = append(rep.Violations, refused...)
	return rep, err
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
		_ = crash.Pause(ctx, firstBackoff)
	}
}

// rush has callers order at the same moment, each once. All must get the acceptance
// or, if it has ended by then, the outcome; it returns how many got an acceptance
// that is not a replay, 0 if one got something else.
func (c *clients) rush(ctx context.Context, op *operation, callers int) (fresh int) {
	start, told := make(chan struct{}), make(chan crashtest.Event, callers)
	for range callers {
		go func() { // ends with the request
			<-start
			told <- c.send(ctx, op, http.MethodPost, orderPath+op.kind, "")
		}()
	}
	close(start)
	other := false
	for range callers {
		ev := <-told
		if other = other || ev.Says != crashtest.AcceptedOnly && ev.Says != crashtest.Outcome; ev.Fresh {
			fresh++
		}
	}
	if other {
		return 0
	}
	return fresh
}
