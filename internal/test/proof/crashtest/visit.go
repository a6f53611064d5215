package crashtest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stet-go/stet/internal/fault"
)

// Visit is where a process is to die.
type Visit struct {
	Point fault.Point   // "" not
	N     int           // at which visit of it, from 1
	Stop  time.Duration // if it is not 0: it stops there for so long, continues as if nothing had been, and dies soon after
}

// Where processes died that were not at a fault point.
const (
	Anywhere fault.Point = "anywhere" // where it happened to be
	Frozen   fault.Point = "frozen"   // after it had been stopped
)

// afterlife is the remaining life of a process that was stopped.
const afterlife = 500 * time.Millisecond

// died is the point that a process counts for which died by itself.
func (v Visit) died() fault.Point {
	if v.Stop > 0 {
		return Frozen
	}
	return v.Point
}

// Mortal is a process that meets its visit, and knows which operations are there.
type Mortal struct {
	v      Visit
	h      *History
	visits atomic.Int64
	doing  sync.Map // goroutine → ID of the operation that it serves
}

// Mortal returns this process's, which tells of its death in h unless that is nil.
// Pass is the hook for fault.Set.
func (v Visit) Mortal(h *History) *Mortal { return &Mortal{v: v, h: h} }

// Pass is called when a point is passed.
func (m *Mortal) Pass(at fault.Point) {
	switch {
	case at != m.v.Point || m.visits.Add(1) != int64(m.v.N):
	case m.v.Stop > 0:
		stop(m.v.Stop)
		time.AfterFunc(afterlife, die)
	default:
		m.tell()
		die()
	}
}

// tell says where this process dies.
func (m *Mortal) tell() {
	if m.h == nil {
		return
	}
	ev := Event{Kind: Die, Point: string(m.v.Point), Visit: m.v.N}
	if id, ok := m.doing.Load(goroutine()); ok {
		ev.Under = []string{id.(string)}
	} else { // a heartbeat or a sweep: all that is in progress
		m.doing.Range(func(_, id any) bool {
			ev.Under = append(ev.Under, id.(string))
			return true
		})
	}
	m.h.Add(ev)
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: not one step further
}

// stop stops this process. Another one has it continue, also if its parent is dead.
func stop(d time.Duration) {
	wake := exec.Command("/bin/sh", "-c", fmt.Sprintf("sleep %.1f; kill -CONT %d", d.Seconds(), os.Getpid())) //nolint:noctx // it ends by itself
	if wake.Start() == nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}

// OperationHeader is the header in which clients say which record theirs is, for
// the history only.
const OperationHeader = "Operation"

// Watch remembers what each request's goroutine serves.
func (m *Mortal) Watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := goroutine()
		m.doing.Store(g, r.Header.Get(OperationHeader))
		defer m.doing.Delete(g)
		next.ServeHTTP(w, r)
	})
}

// goroutine names the running goroutine. A fault point has no context that could
// say on whose behalf it was reached.
func goroutine() string {
	var b [40]byte
	name, _, _ := bytes.Cut(b[:runtime.Stack(b[:], false)], []byte(" ["))
	return string(name)
}
