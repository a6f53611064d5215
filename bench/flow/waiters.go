package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
)

// crowd are clients that wait for an operation each, half of them by long poll, half of
// them on a stream of events.
type crowd struct {
	client *client
	keys   map[string]bool
	wg     sync.WaitGroup

	told     atomic.Int64 // have their outcome
	asked    atomic.Int64 // times that they have asked
	empty    atomic.Int64 // answers without the outcome, long before a wait was over
	cut      atomic.Int64 // connections that were closed without an answer
	busy     atomic.Int64 // answers that the store was too slow
	mu       sync.Mutex
	err      error
	anyError context.CancelFunc
}

// gather starts the clients.
func gather(ctx context.Context, url string) *crowd {
	c := &crowd{client: newClient(url, *clients), keys: make(map[string]bool)}
	ctx, c.anyError = context.WithCancel(ctx)
	begin := make(chan struct{}, 100) // so many connect at a time
	for i := range *clients {
		key := strconv.FormatInt(next.Add(1), 10)
		c.keys[key] = true
		c.wg.Go(func() {
			begin <- struct{}{}
			leave := sync.OnceFunc(func() { <-begin })
			timer := time.AfterFunc(20*time.Millisecond, leave)
			defer timer.Stop()
			defer leave()
			if err := c.wait(ctx, key, i%2 == 0); err != nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.err == nil {
					c.err = err
					c.anyError()
				}
			}
		})
	}
	return c
}

// wait has one client come again until it is told the outcome.
func (c *crowd) wait(ctx context.Context, key string, polls bool) error {
	location := ""
	for {
		began := time.Now()
		var told bool
		var err error
		c.asked.Add(1)
		switch {
		case polls:
			told, err = c.client.poll(ctx, key)
		case location == "":
			location, err = c.client.accept(ctx, key)
			if err == nil {
				continue
			}
		default:
			told, err = c.client.watch(ctx, location, func() {})
		}
		var wrong *answered
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case told:
			c.told.Add(1)
			return nil
		case err != nil && !later(err):
			return err
		case errors.As(err, &wrong):
			c.busy.Add(1)
		case err != nil:
			c.cut.Add(1)
		case time.Since(began) < longest/2:
			c.empty.Add(1)
		default:
			continue // it has waited as long as it may
		}
		pause := time.NewTimer(2*time.Second + rand.N(4*time.Second))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
}

// end waits until all have been told.
func (c *crowd) end() error {
	c.wg.Wait()
	c.anyError()
	c.client.close()
	return c.err
}

// hall is a sidecar with a crowd before it, whose service answers when open is called.
type hall struct {
	*sidecar
	crowd  *crowd
	tally  *tally
	before state
	most   int // that were seen to wait at once
	open   func()
	stop   func() error // of the service
}

// enter starts all of it, and returns when all clients wait, or else as many as may.
func enter(ctx context.Context, p *place, kind, limits string, all bool) (_ *hall, err error) {
	url, err := p.store(ctx, kind)
	if err != nil {
		return nil, err
	}
	h := &hall{tally: newTally()}
	upstream, stop, err := serve(ctx, h.tally)
	if err != nil {
		return nil, err
	}
	h.stop = stop
	if h.sidecar, err = start(ctx, p.program, p.dir, config{store: url, upstream: upstream, worker: "inside", limits: limits, at: offWork}); err != nil {
		return nil, errors.Join(err, stop())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.leave())
		}
	}()
	warm := newClient(h.url, 1)
	defer warm.close()
	if _, err := warm.poll(ctx, "warm-"+strconv.FormatInt(next.Add(1), 10)); err != nil {
		return h, err
	}
	if h.before, err = h.look(); err != nil {
		return h, err
	}
	h.open = h.tally.shut()
	h.crowd = gather(ctx, h.url)
	return h, h.settle(ctx, all)
}

// settle returns when all wait, or else when their number grows no more.
func (h *hall) settle(ctx context.Context, all bool) error {
	grown, since := 0, time.Now()
	for grown == 0 || time.Since(since) < 5*time.Second || all && time.Since(since) < longest {
		now, err := h.waiting()
		if err != nil {
			return err
		}
		if h.most >= *clients {
			return nil
		}
		if now > grown+*clients/100 {
			grown, since = now, time.Now()
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// waiting is how many requests the sidecar has under way.
func (h *hall) waiting() (int, error) {
	const each = 16 << 10 // as the limit of memory counts them, beside their content, which is small
	b, err := h.metrics()
	now := int(field(b, "stet_proxy_in_hand_bytes")) / each
	h.most = min(max(h.most, now), *clients)
	return now, err
}

// leave ends all of it.
func (h *hall) leave() error {
	var err error
	if h.crowd != nil {
		h.open()
		h.crowd.anyError()
		_ = h.crowd.end() // has been told, or is not the first error
	}
	return errors.Join(err, h.sidecar.stop(), h.stop())
}

// held is what was seen while the clients waited.
type held struct {
	waiting    int
	goroutines float64
	processors float64       // that were kept busy
	p50, p99   time.Duration // of an acceptance meanwhile, by one more client
}

// hold looks at those who wait for a while, and has one more client order meanwhile.
func (h *hall) hold(ctx context.Context) (w held, err error) {
	var took []time.Duration
	probe := newClient(h.url, 1)
	defer probe.close()
	first, err := h.look()
	if err != nil {
		return w, err
	}
	began := time.Now()
	for time.Since(began) < *hold && ctx.Err() == nil {
		key, asked := "probe-"+strconv.FormatInt(next.Add(1), 10), time.Now()
		h.crowd.keys[key] = true
		if _, err := probe.accept(ctx, key); err != nil {
			if !later(err) || ctx.Err() != nil {
				return w, err
			}
			delete(h.crowd.keys, key) // it may have been accepted, or not
			time.Sleep(50 * time.Millisecond)
			continue
		}
		took = append(took, time.Since(asked))
		time.Sleep(20 * time.Millisecond)
	}
	last, err := h.look()
	if err != nil {
		return w, err
	}
	w.waiting = h.most // some have just been told to come again
	slices.Sort(took)
	if len(took) > 0 {
		w.p50, w.p99 = percentile(took, 50), percentile(took, 99)
	}
	w.goroutines = last.goroutines
	w.processors = (last.processor - first.processor).Seconds() / time.Since(began).Seconds()
	return w, nil
}

// finish opens the service, and returns how long it took until all were told.
func (h *hall) finish(ctx context.Context) (took time.Duration, peak state, err error) {
	h.open()
	began := time.Now()
	if err := h.crowd.end(); err != nil {
		return 0, peak, err
	}
	took = time.Since(began)
	for h.tally.missing(h.crowd.keys) { // those whose clients have not waited
		if ctx.Err() != nil {
			return 0, peak, fmt.Errorf("%w: %d of %d operations have run", context.Cause(ctx), h.tally.total(), len(h.crowd.keys))
		}
		time.Sleep(20 * time.Millisecond)
	}
	if peak, err = h.look(); err != nil {
		return 0, peak, err
	}
	return took, peak, h.tally.check("clients that wait", h.crowd.keys)
}

// waiters measures a sidecar that lets all clients wait.
func waiters(ctx context.Context, p *place, kind string) error {
	return crowded(ctx, p, kind, "flow_"+kind+"_waiters", fmt.Sprintf("connections: %d, waiters: %d, memory_per_peer: 256MiB", *clients+100, *clients), true)
}

// limits measures one with the default limits, which does not.
func limits(ctx context.Context, p *place, kind string) error {
	return crowded(ctx, p, kind, "flow_"+kind+"_limits", "", false)
}

func crowded(ctx context.Context, p *place, kind, figure, limits string, all bool) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the clients were not told in time"))
	defer cancel()
	h, err := enter(ctx, p, kind, limits, all)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.leave()) }()
	w, err := h.hold(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%d clients, %s, limits {%s}: %d wait at once; %d answers without the outcome, %d connections closed, %d answers that the store was too slow\n",
		*clients, kind, limits, w.waiting, h.crowd.empty.Load(), h.crowd.cut.Load(), h.crowd.busy.Load())
	if n := h.crowd.empty.Load(); all && n > 0 {
		return fmt.Errorf("%d answers came early and without the outcome, though all clients may wait", n)
	}
	took, peak, err := h.finish(ctx)
	if err != nil {
		return err
	}
	each := (peak.peak - h.before.peak) * 1024 / float64(w.waiting)
	rounds.Figure(figure+"_rss_start", h.before.rss, "MiB")
	rounds.Figure(figure+"_rss_peak", peak.peak, "MiB")
	rounds.Figure(figure+"_each", each, "KiB for each that waits")
	rounds.Figure(figure+"_goroutines", w.goroutines, "goroutines")
	rounds.Figure(figure+"_processors", w.processors, "processors kept busy by the sidecar while all wait")
	rounds.Figure(figure+"_accept_p50", ms(w.p50), "ms, an acceptance while they wait")
	rounds.Figure(figure+"_accept_p99", ms(w.p99), "ms, an acceptance while they wait")
	rounds.Figure(figure+"_told", float64(*clients)/took.Seconds(), "clients told the outcome/s, once the service answers")
	if most := float64(eachMost); each > most {
		return fmt.Errorf("%.0f KiB for each client that waits; it is to be less than %v", each, most)
	}
	return nil
}

// eachMost is what a client that waits may cost the sidecar, in KiB.
const eachMost = 200

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
