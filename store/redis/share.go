package redis

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis/internal/company"
)

const (
	fewCalls      = 16          // calls under way of which each has a script of its own
	shareLanes    = 4           // shared scripts under way, besides
	fullLanes     = 28          // those that are full, which gain nothing by waiting for more
	mostShared    = 64          // calls in one
	fewestShared  = 4           // unless replies are so large that fewer would fit
	bytesShared   = 64 << 10    // of the keys and arguments of one; a call that has more shares none
	repliesShared = 1 << 20     // bytes of results after which one does nothing more
	closeShared   = time.Second // that Close waits for those under way
)

// sharing has a single server run calls of several callers in one script. While few are
// under way each goes at once, in its caller's goroutine and by a script of its own. More
// gather, and what has gathered goes as one script as soon as fewer than shareLanes are under
// way, or if it fills one. There is no window of time to wait for company in.
type sharing struct {
	s      *Store
	few    int
	ctx    context.Context // of scripts under way
	cancel context.CancelFunc

	off   atomic.Bool  // keys are on several servers after all
	calls atomic.Int64 // under way
	reply atomic.Int64 // bytes that a reply has, as it seems: see learn

	mu     sync.Mutex
	gather list.List // of *sharedCall
	lanes  int       // free ones; below 0, those that are in use for full scripts
	full   int       // how many of these there may be
	closed bool
	wg     sync.WaitGroup // lanes in use
}

// sharedCall is a call that gathers, or is on its way with others. Its caller does not touch
// reply and err before it is done.
type sharedCall struct {
	ctx   context.Context
	name  string
	keys  []string
	args  []string
	size  int
	place *list.Element // nil when it gathers no more; guarded by sharing.mu
	reply any
	err   error
	done  chan struct{}
}

// errClosedUnderWay is the error of a call that Close does not wait for any longer.
var errClosedUnderWay = errors.New("redis: the store was closed before the server had answered; the call may have been executed")

// errNotShared is the error of a call of which nothing was done, and which has to go alone.
var errNotShared = errors.New("redis: the call shares no script")

func newSharing(ctx context.Context, s *Store) *sharing {
	g := &sharing{s: s, few: fewCalls, lanes: shareLanes, full: fullLanes}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// eval runs a script, alone or with those of other callers. When ctx ends, a call that still
// gathers is not sent; one that is on its way may be executed.
func (g *sharing) eval(ctx context.Context, sc script, keys, args []string) (any, error) {
	under := g.calls.Add(1)
	defer g.calls.Add(-1)
	if under > int64(g.few) && !g.off.Load() && g.most() >= fewestShared {
		reply, err := g.together(ctx, sc.shares, keys, args)
		if !errors.Is(err, errNotShared) {
			return reply, err
		}
	}
	reply, err := g.s.evalOnce(ctx, sc, keys, args...)
	g.learn(company.SizeOf(reply))
	return reply, err
}

// together has a call share a script. Its error is errNotShared if nothing was done.
func (g *sharing) together(ctx context.Context, name string, keys, args []string) (any, error) {
	size := bytesOf(keys) + bytesOf(args)
	if size > bytesShared {
		return nil, errNotShared
	}
	// Copies, so that those of calls that go alone can stay on their stacks.
	c := &sharedCall{ctx: ctx, name: name, keys: slices.Clone(keys), args: slices.Clone(args), size: size, done: make(chan struct{})}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, errClosed
	}
	c.place = g.gather.PushBack(c)
	if g.lanes > 0 || g.gather.Len() >= mostShared && g.lanes > -g.full {
		g.lanes--
		g.wg.Go(g.drain)
	}
	g.mu.Unlock()
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
	case <-g.ctx.Done(): // no call gathers any more
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-c.done: // at the same time
		return c.reply, c.err
	default:
	}
	switch {
	case c.place != nil:
		g.remove(c)
		return nil, fmt.Errorf("the server has not answered earlier calls, and nothing was sent: %w, %w", store.ErrNotDone, ctx.Err())
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, errClosedUnderWay
}

// remove removes a call from those that gather. The caller holds g.mu.
func (g *sharing) remove(c *sharedCall) {
	g.gather.Remove(c.place)
	c.place = nil
}

// drain keeps one lane busy for as long as calls have gathered.
func (g *sharing) drain() {
	over := false
	defer func() {
		if !over { // the client has called runtime.Goexit
			g.wg.Go(g.drain)
		}
	}()
	for {
		some := g.next()
		if len(some) == 0 {
			over = true
			return
		}
		g.send(some)
		runtime.Gosched() // callers that were just answered come with the next script
	}
}

// next takes the calls of the next script; if there are none it gives the lane back.
func (g *sharing) next() (some []*sharedCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := max(g.most(), 1)
	if g.lanes < 0 && g.gather.Len() < mostShared {
		most = 0
	}
	for size := 0; g.gather.Len() > 0 && len(some) < most; {
		c := g.gather.Front().Value.(*sharedCall)
		if size += c.size; size > bytesShared && len(some) > 0 {
			break
		}
		g.remove(c)
		some = append(some, c)
	}
	if len(some) == 0 {
		g.lanes++
	}
	return some
}

// send sends calls as one script, once, and lets their callers know. If there is no reply to
// it, none of them is known to have been executed or not.
func (g *sharing) send(some []*sharedCall) {
	ctx, cancel := context.WithDeadline(g.ctx, company.Latest(some, func(c *sharedCall) context.Context { return c.ctx }))
	defer cancel()
	var replies []any
	err := errors.New("redis: the client has ended its goroutine")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redis: the client has panicked: %v", p)
		}
		for i, c := range some {
			if c.err = err; err == nil {
				c.reply, c.err = answered(replies[i])
			}
			close(c.done)
		}
	}()
	replies, err = g.ask(ctx, some)
	if g.ctx.Err() != nil && errors.Is(err, context.Canceled) { // not that of a caller
		err = errClosedUnderWay
	}
}

// ask runs the script, and returns what it has replied to each call.
func (g *sharing) ask(ctx context.Context, some []*sharedCall) ([]any, error) {
	var keys []string
	args := []string{strconv.Itoa(repliesShared)}
	for _, c := range some {
		keys = append(keys, c.keys...)
		args = append(append(args, c.name), c.args...)
	}
	reply, err := g.s.evalOnce(ctx, sharedScript, keys, args...)
	if code(err) == "CROSSSLOT" { // it was not begun
		g.off.Store(true)
		return nil, errNotShared
	}
	if err != nil {
		return nil, err
	}
	replies, _ := reply.([]any)
	if len(replies) != len(some) {
		return nil, errReply(reply)
	}
	g.learn(company.SizeOf(reply) / len(some))
	return replies, nil
}

// answered is the reply to one call: a string is the text of an error. A client must get
// READONLY as the reply to a command of its own, as it closes the connection then; a server
// says so before it writes anything, so the call goes alone.
func answered(reply any) (any, error) {
	text, failed := reply.(string)
	if !failed {
		return reply, nil
	}
	err := ReplyError(text)
	switch code(err) {
	case "", "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "CROSSSLOT", "MOVED", "ASK", "TRYAGAIN":
		return nil, errNotShared
	}
	return nil, err
}

// learn is told how many bytes a reply had. After large ones fewer calls share a script at
// once, and for a while.
func (g *sharing) learn(reply int) {
	was, is := g.reply.Load(), int64(reply)
	g.reply.Store(max(is, (7*was+is)/8))
}

// most is how many calls a script has at most.
func (g *sharing) most() int {
	return int(min(repliesShared/max(g.reply.Load(), 1), mostShared))
}

// close refuses calls that gather, and waits for those that are under way, but not long.
func (g *sharing) close() {
	g.mu.Lock()
	g.closed = true
	for g.gather.Len() > 0 {
		c := g.gather.Front().Value.(*sharedCall)
		g.remove(c)
		c.err = errClosed
		close(c.done)
	}
	g.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		g.wg.Wait()
		close(ended)
	}()
	for range 2 { // the second time for a client that has to see first that its context has ended
		select {
		case <-ended:
		case <-time.After(closeShared):
		}
		g.cancel()
	}
}

func bytesOf(all []string) (n int) {
	for _, s := range all {
		n += len(s)
	}
	return n
}
