package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A write may wait for a standby for as long as that is away, and must not be cancelled
// then (see standby.go). Its caller leaves; its connection stays in use, so that there
// are no more of them on the server than connections.

const (
	maxLate  = 8           // so many, and nothing more is sent
	lateLook = time.Second // how often it is asked whether anything waits for a standby
	// statementTimeout ends statements on the server, but no wait for a standby.
	statementTimeout = batchTimeout
)

var errLate = fmt.Errorf("%d writes have not been answered yet; nothing was done", maxLate)

// writeOnce executes calls that write, on a connection of the store's own. When ctx
// ends before the server has answered, the connection stays in use until it has.
func (s *Store) writeOnce(ctx context.Context, calls []call) error {
	if s.late.Load() >= maxLate {
		return errLate
	}
	c, err := s.own.Acquire(ctx)
	if err != nil {
		return err
	}
	var caller presence
	calls = caller.guard(calls)
	life, end := context.WithCancel(s.background)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = s.send(life, c, calls...)
		if noticed(c.Conn().PgConn()) && err == nil {
			err = waitsThere(life, c.Conn().PgConn())
		}
		giveBack(c)
	}()
	select {
	case <-done:
		end()
		return err
	case <-ctx.Done():
	}
	caller.leave()
	s.late.Add(1)
	go func() {
		defer s.late.Add(-1)
		s.outwait(done, end)
	}()
	return fmt.Errorf("%w: %w", errUnanswered, context.Cause(ctx))
}

// outwait waits until a write is done. If the server says that nothing waits for a
// standby there, it ends it: its connection is dead, and must not take a place in its
// pool for as long as the network believes in it.
func (s *Store) outwait(done <-chan struct{}, end func()) {
	defer end()
	look := time.NewTicker(lateLook)
	defer look.Stop()
	for {
		select {
		case <-done:
			return
		case <-s.background.Done():
			return
		case <-look.C:
			if waits, err := s.anyWaits(); err == nil && !waits {
				end()
			}
		}
	}
}

// standbyWait is the last known answer whether commits wait for a standby. All late writes
// share it, because each query may take long at that time.
type standbyWait struct {
	mu    sync.Mutex
	seen  time.Time
	waits bool
	err   error
}

// sqlWaits is whether a commit of this user waits for a standby, and has for longer than
// it takes where there is one: a write that is late is older than half of lateLook when
// it is looked at. A role that the user has taken on may not see it.
var sqlWaits = fmt.Sprintf(`SET LOCAL ROLE NONE; SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND usename = session_user
	AND clock_timestamp() - query_start > interval '%d ms')`, (lateLook / 4).Milliseconds())

// anyWaits reports whether a commit that is late may wait for a standby.
func (s *Store) anyWaits() (waits bool, err error) {
	w := &s.standbyWait
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.seen) < lateLook/2 {
		return w.waits, w.err
	}
	ctx, cancel := context.WithTimeout(s.background, connectPatience)
	defer cancel()
	w.err = s.limited(ctx, s.commits, func() error {
		c, err := s.own.Acquire(ctx)
		if err != nil {
			return err
		}
		defer giveBack(c)
		results, err := c.Conn().PgConn().Exec(ctx, sqlWaits).ReadAll()
		if err == nil {
			w.waits = string(results[1].Rows[0][0]) == "t"
		}
		return err
	})
	w.seen = time.Now()
	return w.waits, w.err
}

// presence is whether the caller of a write still waits for its rows.
type presence struct {
	mu   sync.Mutex
	left bool
}

// guard returns calls whose rows are dropped once the caller has left.
func (p *presence) guard(calls []call) []call {
	guarded := make([]call, len(calls))
	for i, c := range calls {
		guarded[i] = c
		if c.row == nil {
			continue
		}
		guarded[i].row = func(row scanner) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.left {
				return nil
			}
			return c.row(row)
		}
	}
	return guarded
}

func (p *presence) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
}
