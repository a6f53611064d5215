package goredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/stet-go/stet/store/redis/internal/company"
)

const (
	maxLanes        = 8        // pipelines and lone commands under way to one server
	mostTogether    = 64       // commands in a pipeline
	bytesTogether   = 64 << 10 // of a pipeline; a command that is longer is in none
	repliesTogether = 1 << 20  // bytes that the replies to a pipeline should have at most
)

// gatherers are those of the servers, by address.
type gatherers struct {
	mu     sync.Mutex
	of     map[string]*gatherer
	closed bool
}

// to returns that of a server.
func (gs *gatherers) to(server *redis.Client) *gatherer {
	o := server.Options()
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.of[o.Addr]
	if g == nil {
		if gs.of == nil {
			gs.of = make(map[string]*gatherer)
		}
		g = &gatherer{lanes: max(min(maxLanes, o.PoolSize/2), 1), closed: gs.closed}
		gs.of[o.Addr] = g
	}
	return g
}

// close refuses new commands, and waits for those that are under way.
func (gs *gatherers) close() {
	gs.mu.Lock()
	gs.closed = true
	all := make([]*gatherer, 0, len(gs.of))
	for _, g := range gs.of {
		all = append(all, g)
	}
	gs.mu.Unlock()
	for _, g := range all {
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		g.wg.Wait()
	}
}

// gatherer lets commands for one server share pipelines. While a lane is free a command
// goes out at once, alone and in its caller's goroutine; with all lanes in use commands
// gather, and what has gathered goes out as one pipeline when a lane is free. There is no
// window of time to wait for company in, and a command waits for the next lane only, which is
// an eighth of a round trip away.
type gatherer struct {
	mu          sync.Mutex
	lanes       int           // free ones
	server      *redis.Client // the newest with the address
	first, last *waiting      // of the commands that gather
	reply       int           // bytes that a reply has, as it seems: see learn
	closed      bool
	wg          sync.WaitGroup // lanes in use
}

// waiting is a command that gathers, or is on its way with others. When it is done it is its
// caller's again, who does not touch it before.
type waiting struct {
	ctx        context.Context
	cmd        *redis.Cmd
	size       int
	err        error
	done       chan struct{}
	prev, next *waiting
	gathers    bool // guarded by gatherer.mu, as are prev and next
}

// way is how a command went.
type way int

const (
	wentAlone way = iota
	wentTogether
	wasLeft // by its caller: cmd must not be used any more
)

// do has a command sent to a server, by alone if a lane is free. When ctx ends, a command
// that still gathers is not sent; one that is on its way may be executed.
func (g *gatherer) do(ctx context.Context, server *redis.Client, cmd *redis.Cmd, size int, alone func() error) (way, error) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return wasLeft, redis.ErrClosed
	}
	g.server = server
	if g.lanes > 0 {
		g.lanes--
		g.wg.Add(1)
		g.mu.Unlock()
		defer g.leave()
		return wentAlone, alone()
	}
	w := &waiting{ctx: ctx, cmd: cmd, size: size, done: make(chan struct{})}
	g.push(w)
	g.mu.Unlock()
	select {
	case <-w.done:
		return wentTogether, w.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.gathers {
		g.remove(w)
		return wasLeft, fmt.Errorf("goredis: the server has not answered earlier commands, and nothing was sent: %w", ctx.Err())
	}
	return wasLeft, ctx.Err()
}

// push appends a command to those that gather. The caller holds g.mu.
func (g *gatherer) push(w *waiting) {
	w.gathers, w.prev = true, g.last
	if g.last == nil {
		g.first = w
	} else {
		g.last.next = w
	}
	g.last = w
}

// remove removes a command from those that gather. The caller holds g.mu.
func (g *gatherer) remove(w *waiting) {
	if w.prev == nil {
		g.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		g.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.gathers, w.prev, w.next = false, nil, nil
}

// leave gives a lane back, or keeps it busy if commands have gathered.
func (g *gatherer) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first != nil {
		go g.drain()
		return
	}
	g.lanes++
	g.wg.Done()
}

// drain keeps one lane busy for as long as there are commands.
func (g *gatherer) drain() {
	over := false
	defer func() {
		if !over { // a hook that the client has called runtime.Goexit
			go g.drain()
		}
	}()
	var some []*waiting
	for {
		var server *redis.Client
		if server, some = g.gather(some[:0]); len(some) == 0 {
			over = true
			return
		}
		g.send(server, some)
		clear(some)
	}
}

// gather takes the commands of the next pipeline, and the server that they are for; if there
// are none it gives the lane back.
func (g *gatherer) gather(some []*waiting) (*redis.Client, []*waiting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.most()
	for size := 0; g.first != nil && len(some) < most; {
		w := g.first
		if size += w.size; size > bytesTogether && len(some) > 0 {
			break
		}
		g.remove(w)
		some = append(some, w)
	}
	if len(some) == 0 {
		g.lanes++
		g.wg.Done()
	}
	return g.server, some
}

// send sends commands together, each of them once, and lets their callers know. If the
// connection breaks, none of them is known to have been executed or not, also where the
// reply had come: as if each had been sent on a connection of its own that broke.
func (g *gatherer) send(server *redis.Client, some []*waiting) {
	ctx, cancel := context.WithDeadline(context.Background(), company.Latest(some, func(w *waiting) context.Context { return w.ctx }))
	defer cancel()
	returned := false
	defer func() {
		if !returned {
			err := errUnanswered // after runtime.Goexit
			if p := recover(); p != nil {
				err = fmt.Errorf("goredis: a pipeline has panicked: %v", p)
			}
			for _, w := range some {
				w.err = err
			}
		}
		for _, w := range some {
			close(w.done)
		}
	}()
	p := server.Pipeline()
	for _, w := range some {
		_ = p.Process(ctx, once{w.cmd}) // it queues
	}
	_, err := p.Exec(ctx) // each command has its own error, if they were sent
	if err == nil || slices.ContainsFunc(some, func(w *waiting) bool { return answered(w.cmd) }) {
		err = errUnanswered
	}
	size := 0
	for _, w := range some {
		if w.err = err; answered(w.cmd) {
			w.err = w.cmd.Err()
		}
		size += company.SizeOf(w.cmd.Val())
	}
	g.learn(size / len(some))
	returned = true
}

// errUnanswered is the error of a command that has none of its own, and no reply.
var errUnanswered = errors.New("goredis: a command was left without a reply, by a hook that the client has")

// answered reports whether a command of a pipeline has a reply, or an error of its own. It
// has neither if the server has refused the connection (which is loading its data, or knows
// another password), and where a hook has not had the pipeline sent: then the error is that of
// the whole pipeline.
func answered(cmd *redis.Cmd) bool { return cmd.Err() != nil || cmd.Val() != nil }

// learn is told how many bytes a reply had in a pipeline. A server whose replies are large gets
// fewer commands at a time: the last reply comes when all others have been read, and within
// the client's ReadTimeout, or all are lost. So after large ones it is careful at once, and
// for a while.
func (g *gatherer) learn(reply int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reply = max(reply, (7*g.reply+reply)/8)
}

// most is how many commands a pipeline has at most. The caller holds g.mu.
func (g *gatherer) most() int {
	return min(max(repliesTogether/max(g.reply, 1), 1), mostTogether)
}
