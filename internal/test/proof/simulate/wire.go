package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// errLost is the error of a call whose request or reply was lost.
var errLost = errors.New("simulate: connection lost")

// errDead is what calls of a process that is dead come to: nothing. It wraps
// KindInvalid so that the engine, whose process is dead, does not insist.
var errDead = fmt.Errorf("%w: the process is dead", store.ErrInvalid)

// call is something that a process wants to be done outside of it.
type call struct {
	p      *process
	kind   kind
	client int8 // on whose behalf; -1: the engine's own
	key    int8
	part   part // of an effect
	fence  int64
	fences [maxKeys]int64    // of an extension
	print  store.Fingerprint // of a claim
	owner  store.Owner       // the same
	n      int               // counts calls
	rec    store.Record      // what a claim or a read came to
	do     func() error      // carries it out
	answer chan answer
}

type answer struct {
	err  error
	lost bool // done or not, the caller got no reply
}

// before is the order in which calls are listed. It must not depend on which of
// two goroutines was faster.
func (c *call) before(d *call) bool {
	switch {
	case c.p.n != d.p.n:
		return c.p.n < d.p.n
	case c.kind != d.kind:
		return c.kind < d.kind
	case c.client != d.client:
		return c.client < d.client
	case c.key != d.key:
		return c.key < d.key
	case c.fence != d.fence:
		return c.fence < d.fence
	}
	return c.n < d.n
}

func (c *call) String() string {
	return fmt.Sprintf("%s of process %d, client %d, key %d, fence %d", kindNames[c.kind], c.p.n, c.client, c.key, c.fence)
}

type (
	clientOf  struct{}
	processOf struct{}
)

// ProcessOf returns the number of the process that a store call comes from.
func ProcessOf(ctx context.Context) int {
	if p, ok := ctx.Value(processOf{}).(*process); ok {
		return int(p.n)
	}
	return 0
}

// await has c carried out when the scheduler says so. It returns what that came
// to, or an error if ctx ends before: then it may still be carried out.
func (c *call) await(ctx context.Context) error {
	w := c.p.w
	c.answer = make(chan answer, 1)
	if n, ok := ctx.Value(clientOf{}).(int8); ok {
		c.client = n
	} else {
		c.client = -1
	}
	w.mu.Lock()
	if c.p.dead {
		w.mu.Unlock()
		return errDead
	}
	w.calls++
	c.n = w.calls
	w.pending = append(w.pending, c)
	w.mu.Unlock()
	select {
	case a := <-c.answer:
		if a.lost {
			return errLost
		}
		return a.err
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.remove(c) {
			w.late = append(w.late, c)
		}
		return ctx.Err()
	}
}

// The process is the store of its engine.

// Claim implements store.Store.
func (p *process) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	c := &call{p: p, kind: claim, key: p.w.key(req.ID), print: req.Fingerprint, owner: req.Owner}
	c.do = func() (err error) {
		c.rec, err = p.w.store.Claim(p.ctx, req)
		return err
	}
	err := c.await(ctx)
	if err != nil && stet.KindOf(err) != stet.KindMismatch {
		return store.Record{}, err
	}
	return c.rec, err
}

// Extend implements store.Store.
func (p *process) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	var lost []store.Claim
	c := &call{p: p, kind: extend, do: func() (err error) {
		lost, err = p.w.store.Extend(p.ctx, claims, lease)
		return err
	}}
	for _, cl := range claims {
		c.fences[p.w.key(cl.ID)] = cl.Fence
	}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	return lost, nil
}

// Settle implements store.Store.
func (p *process) Settle(ctx context.Context, cl store.Claim, out store.Settlement, keep store.Retention) error {
	c := &call{p: p, kind: settle, key: p.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return p.w.store.Settle(p.ctx, cl, out, keep)
	}}
	return c.await(ctx)
}

// Release implements store.Store.
func (p *process) Release(ctx context.Context, cl store.Claim, keep store.Retention) error {
	c := &call{p: p, kind: release, key: p.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return p.w.store.Release(p.ctx, cl, keep)
	}}
	return c.await(ctx)
}

// Read implements store.Store.
func (p *process) Read(ctx context.Context, id store.ID) (store.Record, error) {
	c := &call{p: p, kind: read, key: p.w.key(id)}
	c.do = func() (err error) {
		c.rec, err = p.w.store.Read(p.ctx, id)
		return err
	}
	if err := c.await(ctx); err != nil {
		return store.Record{}, err
	}
	return c.rec, nil
}

// Watch implements store.Watcher. That something has changed reaches the process
// when the scheduler says so.
func (p *process) Watch(ctx context.Context, id store.ID, fence int64) error {
	if err := p.watch(ctx, id, fence); err != nil {
		return err
	}
	c := &call{p: p, kind: wake, key: p.w.key(id), fence: fence, do: func() error { return nil }}
	return c.await(ctx)
}

func (p *process) watch(ctx context.Context, id store.ID, fence int64) error {
	if fence != 0 { // else it is in a transaction
		return p.w.truth.Watch(ctx, id, fence)
	}
	p.w.mu.Lock()
	t := p.w.txns[p.w.key(id)]
	p.w.mu.Unlock()
	if t == nil {
		return nil
	}
	select {
	case <-t.end:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Sweep implements store.Sweeper.
func (p *process) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	var swept store.Swept
	c := &call{p: p, kind: sweep, do: func() (err error) {
		if s, ok := p.w.store.(store.Sweeper); ok {
			swept, err = s.Sweep(p.ctx, limit)
		}
		return err
	}}
	if err := c.await(ctx); err != nil {
		return store.Swept{}, err
	}
	return swept, nil
}
