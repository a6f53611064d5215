package stethttp

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/timer"
)

// HeaderClaim is the request header with the claim (store.Claim.String) for the handler of an
// operation under stet.Policy.Outside. Its service settles with it. A client's header of this
// name is replaced.
const HeaderClaim = "Stet-Claim"

// maxTries bounds Options.Tries.
const maxTries = 10

// The pause before the second try, and the longest.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

// serveOutside calls the handler for an operation that its service settles. If nothing was
// executed, it does so again under a new run.
func (c *call) serveOutside(run *stet.Lease) {
	pause := firstPause
	for try := 1; ; try++ {
		if !c.tryOutside(run, try < c.m.o.Tries) {
			return
		}
		if !timer.Sleep(c.r.Context(), pause/2+rand.N(pause/2)) {
			c.m.refuse(c.w, &notExecuted, "", c.m.o.RetryAfter)
			return
		}
		pause = min(2*pause, maxPause)
		next, err := c.m.engine.Begin(c.r.Context(), c.op)
		switch {
		case err != nil:
			c.refuse(err)
			return
		case next.Replayed():
			c.replay(next)
			return
		}
		run = next
	}
}

// tryOutside runs the handler once, and responds unless it must be tried again. It returns true
// only if more tries are allowed.
func (c *call) tryOutside(run *stet.Lease, more bool) (again bool) {
	rw := c.capture(c.limit, true)
	defer rw.free()
	rw.attend(run.Context(), c.r)
	c.claim = run.Claim.String()
	out, err := run.Do(c.r.Context(), nil, func(ctx context.Context) (stet.Outcome, error) {
		c.handle(ctx, rw)
		return stet.Outcome{}, nil
	})
	whole := run.Declared() != stet.MayHaveExecuted && !rw.missing && !rw.past && !rw.invalid
	switch {
	case err == nil && out.Gone && whole && !rw.over && rw.status < http.StatusInternalServerError:
		c.send(rw, false)
	case err == nil && out.Gone:
		c.refuse(out.Decode(nil))
	case err == nil && unsendable(out) != nil:
		c.refuse(unsendable(out))
	case err == nil:
		fault.At(fault.ResponseBefore)
		c.sendStored(c.m.asHTTP(out, false), false)
		fault.At(fault.ResponseAfter)
	case stet.KindOf(err) != stet.KindRetryable:
		c.failed(run, "an operation has ended, and it is not known yet whether the service has settled it", err)
		c.refuse(err)
	case more && c.worthAnother(rw, whole):
		return true
	default:
		c.unsettled(rw, run, whole)
	}
	return false
}

// worthAnother reports whether an immediate second try may succeed.
func (c *call) worthAnother(rw *capture, whole bool) bool {
	return c.r.Context().Err() == nil && (!whole || rw.status >= http.StatusInternalServerError && rw.final.Get("Retry-After") == "")
}

// unsettled responds for a run that the service has not settled: nothing was executed.
func (c *call) unsettled(rw *capture, run *stet.Lease, whole bool) {
	switch {
	case whole && (rw.status >= 400 && rw.status < 500 || run.Declared() == stet.NotExecuted):
		c.send(rw, true)
	case whole && rw.status < 400:
		c.complain("the service has answered " + strconv.Itoa(rw.status) + " without having settled the operation, so that nothing keeps a retry from executing it again. " +
			"It must call stet_settle with the claim in " + HeaderClaim + ", in the transaction of its writes")
		c.m.refuse(c.w, &notSettled, "", 0)
	default:
		hint := c.m.o.RetryAfter
		if after := retryAfterOf(rw.final.Get("Retry-After")); whole && after > 0 {
			hint = after
		}
		c.m.refuse(c.w, &notExecuted, "", hint)
	}
}
