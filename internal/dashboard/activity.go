package dashboard

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
)

const (
	activityStep   = 10 * time.Second
	activityPoints = 180 // half an hour
)

// Activity counts the events of this process in intervals of 10 s, for the page. It stores the
// last half hour. The zero Activity is ready for use.
type Activity struct {
	mu     sync.Mutex
	points [activityPoints]point
}

// point has the counts of one interval.
type point struct {
	At        time.Time `json:"at"` // when the interval began
	Runs      int       `json:"runs"`
	Replays   int       `json:"replays"`
	Conflicts int       `json:"conflicts"` // in flight, or another fingerprint
	Unknown   int       `json:"unknown"`
	Failures  int       `json:"failures"` // of the store
	Waiting   *int      `json:"waiting,omitempty"`
	Took      float64   `json:"took_ms"` // the mean of the runs that ended
	Longest   float64   `json:"longest_ms"`

	ended int
}

// Observe implements observe.Observer.
func (a *Activity) Observe(_ context.Context, ev observe.Event) {
	a.count(func(p *point) {
		switch ev.Kind {
		case observe.Claimed:
			p.Runs++
		case observe.Replayed:
			p.Replays++
		case observe.InFlight, observe.Mismatched:
			p.Conflicts++
		case observe.MarkedUnknown:
			p.Unknown++
		case observe.StoreFailed:
			p.Failures++
		case observe.Settled, observe.Released:
			if took := float64(ev.Elapsed) / float64(time.Millisecond); took > 0 {
				p.ended++
				p.Took += (took - p.Took) / float64(p.ended)
				p.Longest = max(p.Longest, took)
			}
		}
	})
}

// count changes the point of the present interval.
func (a *Activity) count(change func(*point)) {
	now := time.Now().Truncate(activityStep)
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &a.points[now.Unix()/int64(activityStep/time.Second)%activityPoints]
	if !p.At.Equal(now) {
		*p = point{At: now}
	}
	change(p)
}

// last returns the points of the last half hour, the oldest first.
func (a *Activity) last() []point {
	now := time.Now().Truncate(activityStep)
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]point, 0, activityPoints)
	for i := activityPoints - 1; i >= 0; i-- {
		at := now.Add(-time.Duration(i) * activityStep)
		p := a.points[at.Unix()/int64(activityStep/time.Second)%activityPoints]
		if !p.At.Equal(at) {
			p = point{At: at}
		}
		p.At = p.At.UTC()
		all = append(all, p)
	}
	return all
}

// activity answers with the counts of this process; none without Options.Activity.
func (h *handler) activity(*http.Request) (any, error) {
	answer := struct {
		Step   float64 `json:"step_seconds"`
		Points []point `json:"points"`
	}{activityStep.Seconds(), []point{}}
	if h.o.Activity != nil {
		answer.Points = h.o.Activity.last()
	}
	return answer, nil
}
