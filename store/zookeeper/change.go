package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/calls"
)

const (
	tries      = 12                    // of one change, while others change the record or the connection fails
	retryLeast = 10 * time.Millisecond // between tries after a connection failed
	retryMost  = 500 * time.Millisecond
)

// load reads a record. With an error that wraps store.ErrDamaged, stat and id are set.
func (s *Store) load(ctx context.Context, id store.ID) (*node, error) {
	type found struct {
		data []byte
		stat *zk.Stat
	}
	f, err := call(ctx, s, func() (found, error) {
		data, stat, err := s.conn.Get(s.path(id))
		return found{data, stat}, err
	})
	n := &node{id: id}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return n, nil
	case err != nil:
		return n, fmt.Errorf("zookeeper: read %v: %w", id, err)
	}
	n.stat, n.exists = *f.stat, true
	return n, n.unmarshal(f.data)
}

// fresh is load after all writes that were acknowledged before the call. A write of the session refusedIn
// was refused before: it orders the read, as a write of the clock does.
func (s *Store) fresh(ctx context.Context, id store.ID, refusedIn int64) (*node, error) {
	for ; ; refusedIn = 0 {
		session := s.conn.SessionID()
		if session != refusedIn || session == 0 {
			if err := s.touch(ctx); err != nil {
				return &node{id: id}, err
			}
		}
		n, err := s.load(ctx, id)
		if s.conn.SessionID() == session {
			return n, err
		}
	}
}

// view is a record at a time.
type view struct {
	*node
	now     millis
	changed bool // since an unacknowledged write of this call: the write had an effect, or another caller wrote
}

// same reports whether no write came between two reads of a record.
func same(a, b *node) bool {
	return a.exists == b.exists && a.stat.Czxid == b.stat.Czxid && a.stat.Version == b.stat.Version
}

func (v view) record() store.Record { return v.node.record(v.now) }

// see reads a record, as load or as fresh does it, and the clock.
func (s *Store) see(ctx context.Context, id store.ID, fresh bool, refusedIn int64) (view, error) {
	n, err := &node{}, error(nil)
	if fresh {
		n, err = s.fresh(ctx, id, refusedIn)
	} else {
		n, err = s.load(ctx, id)
	}
	if err != nil {
		return view{node: n}, err
	}
	now, err := s.now(ctx)
	return view{node: n, now: max(now, n.stat.Mtime)}, err // a write that is seen has happened
}

// final reports whether a stale view is as good as a fresh one: no outcome is replaced by another.
func (v view) final() bool { return v.exists && v.State.Settled() && !v.forgotten(v.now) }

// change reads a record and makes the change that plan returns, until no other write came in between. A
// plan of nil changes nothing. After an unacknowledged write it reads the record again. If that is the
// same, the write had no effect, and has none later: its session has moved to another server, or ended.
// Otherwise plan must return an error unless it recognises its own change, and the effect is unknown.
// The error wraps store.ErrNotDone if no write had an effect.
func (s *Store) change(ctx context.Context, id store.ID, plan func(view) (*write, error)) (view, error) {
	var last error      // why the last write failed
	var refusedIn int64 // the session in which it was refused
	var unsure *node    // the record before a write that may have had an effect
	fresh := false      // whether the next read must be
	fail := func(v view, err error) (view, error) {
		if unsure != nil { // the error can wrap ErrNotDone or ErrFenced
			return v, fmt.Errorf("zookeeper: %v: a write was not acknowledged: %s", id, err.Error())
		}
		return v, calls.NotDone(err)
	}
	for try := 1; try <= tries; try++ {
		v, err := s.see(ctx, id, fresh, refusedIn)
		switch damaged := errors.Is(err, store.ErrDamaged); {
		case damaged && !fresh:
			fresh = true
			continue
		case damaged:
			return v, err
		case err != nil && !s.again(ctx, err, try):
			return fail(v, errors.Join(err, last))
		case err != nil:
			last, fresh, refusedIn = err, true, 0
			continue
		}
		if unsure != nil && same(unsure, v.node) {
			unsure = nil
		}
		v.changed = unsure != nil
		w, err := plan(v)
		if w == nil && v.changed && err != nil {
			return fail(v, err)
		}
		if w == nil && (fresh || err == nil && v.final()) {
			return v, err
		}
		if fresh = true; w == nil {
			continue
		}
		session := s.conn.SessionID()
		var after *node
		if after, err = s.commit(ctx, v, w); err == nil {
			return view{node: after, now: max(v.now, after.stat.Mtime)}, nil
		}
		last = fmt.Errorf("zookeeper: write %v: %w", id, err)
		if refusedIn = 0; conflict(err) {
			refusedIn = session
			continue
		}
		if unsure == nil && !noEffect(err) {
			unsure = v.node
		}
		if !s.again(ctx, err, try) {
			return fail(v, last)
		}
	}
	return fail(view{}, fmt.Errorf("gave up after %d tries: %w", tries, last))
}

// again waits after a request that failed, and reports whether to try again.
func (s *Store) again(ctx context.Context, err error, try int) bool {
	return !errors.Is(err, zk.ErrNoAuth) && !errors.Is(err, store.ErrNotDone) && timer.Sleep(ctx, timer.Backoff(try, retryLeast, retryMost))
}

// write is a change of a record: to a new znode, to other data, or to nothing.
type write struct {
	to    *node // nil: remove the record
	anew  bool  // a claim: the znode is made anew
	place string
}

// commit makes a change. It creates the folder of the schedule if it does not exist.
func (s *Store) commit(ctx context.Context, v view, w *write) (*node, error) {
	n, err := s.tryCommit(ctx, v, w)
	if errors.Is(err, zk.ErrNoNode) && w.place != "" && s.make(ctx, path.Dir(w.place)) == nil {
		return s.tryCommit(ctx, v, w)
	}
	return n, err
}

// tryCommit makes a change in one multi.
func (s *Store) tryCommit(ctx context.Context, v view, w *write) (*node, error) {
	record, was := s.path(v.id), s.place(v.node)
	var ops []any
	drop := func() {
		if was != "" {
			ops = append(ops, &zk.DeleteRequest{Path: was, Version: -1})
		}
	}
	if w.to == nil {
		ops = append(ops, &zk.DeleteRequest{Path: record, Version: v.stat.Version})
		drop()
		_, err := s.multi(ctx, ops)
		return &node{id: v.id}, err
	}
	w.to.exists = true
	data, err := w.to.marshal()
	if err != nil {
		return nil, calls.NotDone(err)
	}
	version := v.stat.Version
	switch w.place = s.place(w.to); {
	case w.anew:
		if v.exists {
			ops = append(ops, &zk.DeleteRequest{Path: record, Version: version})
			drop()
		}
		// The data is written by a second operation, because only that returns the czxid.
		ops = append(ops, &zk.CreateRequest{Path: record, Acl: s.acl}, &zk.CreateRequest{Path: w.place, Acl: s.acl})
		version = 0
	case w.place == was:
		ops = append(ops, &zk.CheckVersionRequest{Path: was, Version: -1})
	default:
		drop()
		ops = append(ops, &zk.CreateRequest{Path: w.place, Acl: s.acl})
	}
	ops = append(ops, &zk.SetDataRequest{Path: record, Data: data, Version: version})
	stat, err := s.multi(ctx, ops)
	if err != nil {
		return nil, err
	}
	w.to.stat = *stat
	return w.to, nil
}

// multi executes operations together and returns the stat that the last one has, if it has one.
func (s *Store) multi(ctx context.Context, ops []any) (*zk.Stat, error) {
	sent := s.clock.local()
	done, err := call(ctx, s, func() ([]zk.MultiResponse, error) { return s.conn.Multi(ops...) })
	if err != nil {
		return nil, err
	}
	for _, r := range done {
		if r.Error != nil {
			return nil, r.Error
		}
	}
	stat := done[len(done)-1].Stat
	if stat != nil {
		s.clock.sample(stat.Mtime, sent)
	}
	return stat, nil
}
