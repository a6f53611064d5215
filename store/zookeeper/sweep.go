package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/calls"
)

// Sweep implements store.Sweeper. It lists the folders of the schedule whose time has come, and reads only
// the records that are due. A lease, and a result that is kept for at most an hour, are due in time;
// others up to an hour later. (A call about a record compares the exact time.)
func (s *Store) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	if limit < 1 {
		return swept, ctx.Err()
	}
	now, err := s.now(ctx)
	if err != nil {
		return swept, err
	}
	folders, err := s.children(ctx, s.root+"/due")
	if err != nil {
		return swept, err
	}
	sw := &sweep{s: s, left: limit}
	for _, folder := range folders { // the earliest first
		in, err := folderTime(folder)
		if err != nil || in > now || in == never {
			continue
		}
		names, err := s.children(ctx, s.root+"/due/"+folder)
		if err != nil {
			return sw.swept, err
		}
		if len(names) == 0 && in+hour < now { // no claim uses it any more
			_, _ = call(ctx, s, func() (int, error) { return 0, s.conn.Delete(s.root+"/due/"+folder, -1) })
			continue
		}
		if sw.folder(ctx, folder, names, now); sw.left <= 0 || ctx.Err() != nil {
			break
		}
	}
	sw.swept.More = sw.left <= 0 // perhaps: later folders were not read
	return sw.swept, cmp.Or(ctx.Err(), sw.bad.Err())
}

// children lists the children of a znode, sorted; none if it does not exist.
func (s *Store) children(ctx context.Context, of string) ([]string, error) {
	names, err := call(ctx, s, func() ([]string, error) {
		names, _, err := s.conn.Children(of)
		return names, err
	})
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, fmt.Errorf("zookeeper: list %s: %w", of, err)
	}
	slices.Sort(names)
	return names, nil
}

// folderTime is the time of a folder of the schedule.
func folderTime(name string) (in millis, err error) {
	text, _, _ := strings.Cut(name, "-")
	_, err = fmt.Sscanf(text, "%x", &in)
	return in, err
}

// sweep is one call of Sweep.
type sweep struct {
	s  *Store
	mu sync.Mutex

	swept store.Swept
	left  int // of the limit
	bad   calls.Partial
}

// folder processes the due records of a folder.
func (sw *sweep) folder(ctx context.Context, folder string, names []string, now millis) {
	var due []string
	for _, name := range names {
		if at, _, err := parsePlace(name); err == nil && at <= now {
			due = append(due, name)
		}
	}
	for len(due) > 0 && sw.left > 0 && ctx.Err() == nil {
		n := min(sw.left, len(due)) // unreadable records are not counted
		calls.Each(n, func(i int) { sw.one(ctx, sw.s.root+"/due/"+folder+"/"+due[i]) })
		due = due[n:]
	}
}

// one processes the record of a place that is due.
func (sw *sweep) one(ctx context.Context, place string) {
	s := sw.s
	_, id, _ := parsePlace(path.Base(place))
	v, err := s.see(ctx, id, false, 0)
	var did *int
	var w *write
	switch {
	case err != nil:
		sw.bad.Add(store.Claim{ID: id, Fence: v.stat.Czxid}, err)
		return
	case s.place(v.node) != place: // of an earlier state
		err = s.unlist(ctx, v, place)
	default:
		w, did = sw.plan(v)
	}
	if w != nil {
		_, err = s.commit(ctx, v, w)
	}
	switch {
	case conflict(err): // it has changed: the next sweep reads it again
		return
	case err != nil:
		sw.bad.Add(store.Claim{ID: id, Fence: v.stat.Czxid}, err)
		return
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	if sw.left--; did != nil {
		*did++
	}
}

// unlist removes a place that is not that of the record, unless the record has changed. The read can be
// older than the place, if the session has ended since.
func (s *Store) unlist(ctx context.Context, v view, place string) error {
	record := s.path(v.id)
	ops := []any{&zk.CheckVersionRequest{Path: record, Version: v.stat.Version}}
	if !v.exists {
		ops = []any{&zk.CreateRequest{Path: record, Acl: s.acl}, &zk.DeleteRequest{Path: record, Version: -1}}
	}
	_, err := s.multi(ctx, append(ops, &zk.DeleteRequest{Path: place, Version: -1}))
	return err
}

// plan returns the due change of a record, and the number to count it in.
func (sw *sweep) plan(v view) (w *write, did *int) {
	switch {
	case v.forgotten(v.now):
		return &write{}, &sw.swept.Purged
	case v.State == store.Running && v.ends(v.End.Lease, v.now):
		return markUnknown(v), &sw.swept.MarkedUnknown
	case v.State.Settled() && !v.Gone && v.ends(v.End.Expire, v.now):
		return discard(v, v.End.Expire), &sw.swept.Expired
	}
	to := v.again()
	if to.schedule(v.now); to.Slot == v.Slot {
		return nil, nil // in some milliseconds
	}
	return &write{to: to}, nil // its lease was renewed
}
