package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	maxWatchers  = 4096                   // watchers in a process
	glance       = 500 * time.Millisecond // how often a watcher looks by itself: a notification may be lost
	txGlance     = 100 * time.Millisecond // the same for a transaction, which may roll back and so send no notification
	relisten     = 250 * time.Millisecond // between tries to listen
	listenerIdle = 30 * time.Second       // how long the connection is kept when no caller watches
)

var (
	errTooManyWatchers = errors.New("postgres: too many watchers; poll")
	errPgBouncer       = errors.New("postgres: nothing can be listened to through PgBouncer; poll")
)

// Watch implements store.Watcher, by NOTIFY. The end of a run is notified only if
// a caller watches its record, because notifications are committed one after the
// other. One connection listens for all watchers of the process.
//
// Through PgBouncer it returns an error, so that its caller polls.
func (s *Store) Watch(ctx context.Context, id store.ID, fence int64) error {
	if fence == 0 { // it is in a transaction
		return s.watchTx(ctx, id)
	}
	if s.o.PgBouncer {
		return errPgBouncer
	}
	told, leave, err := s.listener.join(id, false)
	if err != nil {
		return err
	}
	defer leave()
	if err := s.listener.ready(ctx); err != nil {
		return err
	}
	if err := s.mark(ctx, id, fence); err != nil {
		return err
	}
	for {
		rec, err := s.Read(ctx, id)
		if err != nil {
			return err
		}
		if rec.State != store.Running || rec.Fence != fence || rec.LeaseLeft <= 0 {
			return nil
		}
		if err := timer.Until(ctx, told, min(rec.LeaseLeft, timer.Around(glance))); err != nil {
			return err
		}
	}
}

// watchTx waits for the end of a transaction, of which there is no row. It
// returns after a while in any case: to try to enter is the only way to find out
// that it has rolled back.
func (s *Store) watchTx(ctx context.Context, id store.ID) error {
	var told <-chan struct{} // permanently, through PgBouncer
	if !s.o.PgBouncer {
		heard, leave, err := s.listener.join(id, true)
		if err != nil {
			return err
		}
		defer leave()
		told = heard
	}
	t := time.NewTimer(timer.Around(txGlance))
	defer t.Stop()
	select {
	case <-told:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// mark asks for a notification when the run ends.
func (s *Store) mark(ctx context.Context, id store.ID, fence int64) error {
	return s.alone(ctx, s.slow, func() []call {
		return []call{{statement: s.sql.watch, args: []any{id[:], fence}}}
	})
}

// listener is the connection that listens. It is opened when a caller watches,
// and lives a little longer than that.
type listener struct {
	s   *Store
	ctx context.Context

	mu       sync.Mutex
	watchers map[store.ID]map[chan struct{}]struct{}
	locks    map[int64]int // shared locks to hold for watchers of transactions
	n        int
	running  bool
	closed   bool
	up       chan struct{}      // closed while it listens
	stir     context.CancelFunc // ends the wait for a notification; nil if there is none
	wg       sync.WaitGroup
}

func newListener(ctx context.Context, s *Store) *listener {
	return &listener{s: s, ctx: ctx, watchers: make(map[store.ID]map[chan struct{}]struct{}), locks: make(map[int64]int), up: make(chan struct{})}
}

// join adds a watcher; told gets a value when its record has changed.
func (l *listener) join(id store.ID, tx bool) (told <-chan struct{}, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, errClosed
	}
	if l.n >= maxWatchers {
		return nil, nil, errTooManyWatchers
	}
	watcher := make(chan struct{}, 1)
	if l.watchers[id] == nil {
		l.watchers[id] = make(map[chan struct{}]struct{})
	}
	l.watchers[id][watcher] = struct{}{}
	l.n++
	number := l.s.waitersLock(id)
	if tx {
		l.locks[number]++
	}
	if !l.running {
		l.running = true
		l.wg.Go(l.listen)
	}
	l.disturb()
	return watcher, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers[id], watcher)
		if len(l.watchers[id]) == 0 {
			delete(l.watchers, id)
		}
		l.n--
		if tx {
			if l.locks[number]--; l.locks[number] == 0 {
				delete(l.locks, number)
			}
		}
	}, nil
}

// disturb has the connection look at the work to do. The caller holds l.mu.
func (l *listener) disturb() {
	if l.stir != nil {
		l.stir()
	}
}

// ready waits until the connection listens.
func (l *listener) ready(ctx context.Context) error {
	l.mu.Lock()
	up := l.up
	l.mu.Unlock()
	t := time.NewTimer(glance)
	defer t.Stop()
	select {
	case <-up:
	case <-t.C: // then a watcher looks by itself
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// listen runs while there are watchers.
func (l *listener) listen() {
	for {
		err := l.session()
		l.mu.Lock()
		select {
		case <-l.up:
			l.up = make(chan struct{})
		default:
		}
		l.tellAll() // notifications may have been missed
		if l.closed || err == nil && l.n == 0 {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		if !timer.Sleep(l.ctx, timer.Around(relisten)) {
			l.mu.Lock()
			l.running = false
			l.mu.Unlock()
			return
		}
	}
}

// session listens on one connection; nil when no caller watches any more.
func (l *listener) session() error {
	pooled, err := l.s.own.Acquire(l.ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = pooled.Conn().Close(context.WithoutCancel(l.ctx)) // and with it its LISTEN and its locks
		giveBack(pooled)
	}()
	conn := pooled.Conn()
	if _, err := conn.Exec(l.ctx, "LISTEN "+pgx.Identifier{l.s.n.channel}.Sanitize()); err != nil {
		return err
	}
	l.mu.Lock()
	close(l.up)
	l.mu.Unlock()
	held := make(map[int64]struct{})
	idle := time.Now()
	for {
		ctx, cancel := context.WithTimeout(l.ctx, txGlance)
		want, busy := l.look(cancel)
		if busy {
			idle = time.Now()
		} else if time.Since(idle) > listenerIdle {
			cancel()
			return nil
		}
		if err := exchange(l.ctx, pooled, held, want); err != nil {
			cancel()
			return err
		}
		n, err := conn.WaitForNotification(ctx)
		cancel()
		switch {
		case err == nil:
			l.heard(n)
		case l.ctx.Err() != nil || !pgconn.Timeout(err) && !errors.Is(err, context.Canceled):
			return err
		}
	}
}

// look returns the locks to hold, and whether anybody watches. stir ends the
// wait that follows.
func (l *listener) look(stir context.CancelFunc) (want map[int64]struct{}, busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stir = stir
	if len(l.locks) > 0 {
		want = make(map[int64]struct{}, len(l.locks))
		for number := range l.locks {
			want[number] = struct{}{}
		}
	}
	return want, l.n > 0
}

// exchange releases locks that are no longer wanted, and takes the wanted ones. A lock that is
// not free belongs to a transaction that is committing.
func exchange(ctx context.Context, c *pgxpool.Conn, held, want map[int64]struct{}) error {
	for number := range held {
		if _, ok := want[number]; !ok {
			if _, err := c.Exec(ctx, "SELECT pg_advisory_unlock_shared($1)", number); err != nil {
				return err
			}
			delete(held, number)
		}
	}
	for number := range want {
		if _, ok := held[number]; ok {
			continue
		}
		var got bool
		if err := c.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared($1)", number).Scan(&got); err != nil {
			return err
		}
		if got {
			held[number] = struct{}{}
		}
	}
	return nil
}

// heard wakes the watchers of a record.
func (l *listener) heard(n *pgconn.Notification) {
	id, err := store.ParseID(n.Payload)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	tell(l.watchers[id])
}

// tellAll wakes everybody. The caller holds l.mu.
func (l *listener) tellAll() {
	for _, watchers := range l.watchers {
		tell(watchers)
	}
}

func tell(watchers map[chan struct{}]struct{}) {
	for watcher := range watchers {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}

// close ends the session; its context has ended already.
func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	l.disturb()
	l.mu.Unlock()
	l.wg.Wait()
}
