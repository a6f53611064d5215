package messages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
)

// siege has children of which each is killed and followed by another, some at a
// time. It returns how many were killed, and where.
func (s *storm) siege(ctx context.Context, what string, kills int, next func(i int) (order, error)) (n int, at map[fault.Point]int, err error) {
	type end struct {
		at  fault.Point
		err error
	}
	ended := make(chan end, atOnce)
	at = make(map[fault.Point]int)
	for begun, running := 0, 0; ; {
		for err == nil && begun < kills && running < atOnce {
			var o order
			if o, err = next(begun); err != nil {
				break
			}
			begun++
			running++
			go func() { // ends with the child, or with ctx
				where, err := s.killOne(ctx, o)
				ended <- end{where, err}
			}()
		}
		if running == 0 {
			return n, at, err
		}
		e := <-ended
		running--
		if e.err != nil {
			err = errors.Join(err, e.err)
			continue
		}
		n++
		at[e.at]++
		if n%10 == 0 {
			s.cfg.Progress(fmt.Sprintf("%s, %s: %d of %d %s kills", s.cfg.Broker, s.cfg.Store, n, kills, what))
		}
	}
}

// killOne starts a child and returns when it was killed, and where.
func (s *storm) killOne(ctx context.Context, o order) (fault.Point, error) {
	c, err := s.start(ctx, o)
	if err != nil {
		return "", err
	}
	if o.Point == frozen {
		return thaw(ctx, c, o.Patience)
	}
	timeout := time.NewTimer(o.Patience)
	defer timeout.Stop()
	select {
	case <-c.Exited():
		if !c.Killed() {
			return "", fmt.Errorf("a child ended by itself: %s", c.End())
		}
		return o.Point, nil
	case <-timeout.C:
		c.Kill()
		return anywhere, nil
	case <-ctx.Done():
		c.Kill()
		return "", context.Cause(ctx)
	}
}

// thaw waits until a child has stopped itself, lets its lease run out, and has it
// go on, and act on what it believed, for a moment. Then it is killed. One that
// never came by its point is killed where it is.
func thaw(ctx context.Context, c *child.Process, patience time.Duration) (fault.Point, error) {
	defer c.Kill()
	for end := time.Now().Add(patience); !stopped(c); pause(ctx, frozenPoll) {
		select {
		case <-c.Exited():
			return "", fmt.Errorf("a child ended by itself: %s", c.End())
		default:
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return anywhere, context.Cause(ctx)
		}
	}
	pause(ctx, frozenFor)
	if err := c.Signal(syscall.SIGCONT); err != nil {
		return "", fmt.Errorf("a frozen child has ended: %w", err)
	}
	pause(ctx, thawedFor)
	return frozen, context.Cause(ctx)
}

// stopped reports whether a child is stopped, as Linux shows it.
func stopped(c *child.Process) bool {
	text, err := os.ReadFile("/proc/" + c.Addr + "/stat")
	if err != nil {
		return false
	}
	_, after, found := strings.Cut(string(text), ") ") // of its name
	return found && strings.HasPrefix(after, "T")
}

// ready tells the parent that the child has begun, and where Linux shows it.
func ready() { child.Ready(os.Stdout, strconv.Itoa(os.Getpid())) }

// start starts a child; one that found no broker is started again.
func (s *storm) start(ctx context.Context, o order) (*child.Process, error) {
	command, err := child.Order(childEnv, o)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(startTimeout); ; {
		c, err := child.Start(ctx, command)
		if err == nil || !errors.Is(err, child.ErrExited) || time.Now().After(deadline) {
			return c, err
		}
		if c.Killed() { // at its point, before it said that it was ready
			return c, nil
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// unharmed starts children that nobody kills. stop lets them end.
func (s *storm) unharmed(ctx context.Context, o func(i int) order) (stop func(), err error) {
	var cs []*child.Process
	stop = func() {
		for _, c := range cs {
			c.Stop(30 * time.Second)
		}
	}
	for i := range atOnce {
		c, err := s.start(ctx, o(i))
		if err != nil {
			stop()
			return nil, err
		}
		cs = append(cs, c)
	}
	return stop, nil
}
