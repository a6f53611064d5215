package ordeal

import (
	"bytes"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/stet-go/stet/internal/fault"
)

// dying makes this process kill itself at a visit of a fault point, and knows
// which operations were there.
type dying struct {
	h      *History
	visits atomic.Int64
	doing  sync.Map // goroutine → ID of the operation that it serves
}

// newDying sets the fault hook if the order says where to die.
func newDying(o order, h *History) *dying {
	d := &dying{h: h}
	if o.Point != "" {
		fault.Set(func(at fault.Point) {
			if at == o.Point && d.visits.Add(1) == int64(o.Visit) {
				d.die(o)
			}
		})
	}
	return d
}

func (d *dying) die(o order) {
	ev := Event{Kind: Die, Point: string(o.Point), Visit: o.Visit}
	if id, ok := d.doing.Load(goroutine()); ok {
		ev.Under = []string{id.(string)}
	} else { // a heartbeat or a sweep: all that is under way
		d.doing.Range(func(_, id any) bool {
			ev.Under = append(ev.Under, id.(string))
			return true
		})
	}
	d.h.Add(ev)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: not one step further
}

// watch remembers what each request's goroutine serves.
func (d *dying) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := goroutine()
		d.doing.Store(g, r.Header.Get(operation))
		defer d.doing.Delete(g)
		next.ServeHTTP(w, r)
	})
}

// operation is the header in which clients say which record theirs is, for the
// history only.
const operation = "Operation"

// goroutine names the running goroutine. A fault point has no context that could
// say on whose behalf it was reached.
func goroutine() string {
	var b [40]byte
	name, _, _ := bytes.Cut(b[:runtime.Stack(b[:], false)], []byte(" ["))
	return string(name)
}
