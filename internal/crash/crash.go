// Package crash has the processes of a crash test, one after the other in the same place, killed and
// followed by the next. It is the part of the kernel that is shipped, for stet demo; proof/crashtest has
// the rest.
package crash

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/child"
)

const (
	closeWithin = 3 * time.Second       // of running requests, when a service is asked to end
	headerLimit = 5 * time.Second       // to read a request's header
	bindTries   = 100                   // after a kill the port may be free a little later
	bindPause   = 20 * time.Millisecond // between them
	maxStreams  = 20_000                // of many callers on one connection

	// StopGrace is how long a service may take to end after the request.
	StopGrace = closeWithin + time.Second
)

// Pause waits for d, or returns why ctx has ended.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Lane is a place for one process at a time.
type Lane struct {
	mu   sync.Mutex
	proc *child.Process // the last started process; nil if there was none
}

// Start starts a process in place of the last one. A process that dies of SIGKILL before
// it is ready has been started, too; the error wraps child.ErrExited if one ends
// before that in another way.
func (l *Lane) Start(ctx context.Context, c child.Command) error {
	p, err := child.Start(ctx, c)
	if p != nil && errors.Is(err, child.ErrExited) && p.Killed() { // nil if the cause of ctx is another child that exited
		err = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proc = p
	return err
}

// Process is the last started process, which may have ended; nil if none was.
func (l *Lane) Process() *child.Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proc
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (l *Lane) Kill() {
	if p := l.Process(); p != nil {
		p.Kill()
	}
}

// Stop lets the process end by itself, and kills it if it has not after grace.
func (l *Lane) Stop(grace time.Duration) {
	if p := l.Process(); p != nil {
		p.Stop(grace)
	}
}

// Listen binds addr, which a process that was just killed may still hold.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	var err error
	for range bindTries {
		var ln net.Listener
		if ln, err = lc.Listen(ctx, "tcp", addr); err == nil {
			return ln, nil
		}
		if Pause(ctx, bindPause) != nil {
			break
		}
	}
	return nil, err
}

// Serve serves until ctx ends, and then ends the requests at work. HTTP/2 is
// spoken without TLS, too, as many callers need no connection each then.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: headerLimit, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams}}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	err := srv.Shutdown(bound)
	if err != nil {
		err = errors.Join(err, srv.Close())
	}
	<-served // http.ErrServerClosed
	return err
}
