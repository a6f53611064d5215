package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

// Defaults of a Relaying.
const (
	// DefaultRelayRetry is the default of Relaying.Retry.
	DefaultRelayRetry = 30 * time.Second
	// DefaultSendTimeout is the default of Target.Timeout.
	DefaultSendTimeout = 10 * time.Second
)

// relayDrain is how long messages are sent after the process begins to end.
const relayDrain = 5 * time.Second

// Relaying sends the messages that services emit (HeaderEmit, or stet_emit of SQL): after the
// outcome is stored, at least once, always with the same ID, until the target confirms them.
type Relaying struct {
	Targets []Target `yaml:"targets"`
	Retry   Duration `yaml:"retry"`
	Source  string   `yaml:"source"`
}

// Target is a place that messages are sent to.
type Target struct {
	To          string            `yaml:"to"`
	By          string            `yaml:"by"`
	Exchange    string            `yaml:"exchange"`
	Credentials string            `yaml:"credentials"`
	Format      string            `yaml:"format" oneof:"cloudevents plain"`
	Headers     map[string]string `yaml:"headers"`
	Timeout     Duration          `yaml:"timeout"`
}

const maxTargets = 100

func (r *Relaying) retry() time.Duration { return cmp.Or(time.Duration(r.Retry), DefaultRelayRetry) }

// check returns errors. It does not connect.
func (r *Relaying) check() error {
	if r == nil {
		return nil
	}
	var errs []error
	bad := func(err error, path ...any) { errs = append(errs, under(err, path...)) }
	if len(r.Targets) == 0 || len(r.Targets) > maxTargets {
		bad(fmt.Errorf("there are %d; 1 to %d, each with by: a URL", len(r.Targets), maxTargets), "targets")
	}
	if d := time.Duration(r.Retry); d > store.MaxDelay || d != 0 && d < time.Second {
		bad(fmt.Errorf("%v is not between 1s and %v", d, store.MaxDelay), "retry")
	}
	if s := cmp.Or(r.Source, defaultSource); len(s) > 255 || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		bad(errors.New("it is no URI reference of at most 255 bytes"), "source")
	}
	all := -1
	for i := range r.Targets {
		t := &r.Targets[i]
		if s, err := t.sender(r); err != nil {
			bad(err, "targets", i)
		} else {
			s.close()
		}
		switch pattern := cmp.Or(t.To, "*"); {
		case all >= 0 && pattern != RefusedDestination:
			bad(fmt.Errorf("targets[%d] takes every destination, so that nothing comes here; put it last", all), "targets", i, "to")
		case strings.Trim(pattern, "*") == "":
			all = i
		}
	}
	return errors.Join(errs...)
}

// relayer sends the stored messages.
type relayer struct {
	engine  *stet.Engine
	targets *targets
	relay   *stetmsg.Relay
	log     *slog.Logger
	begun   atomic.Bool
	unasked seldom
}

// run sends messages until ctx ends. The last ones have a few seconds to be confirmed.
func (r *relayer) run(ctx context.Context) error {
	r.begun.Store(true)
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(relayDrain, end) })()
	poll := time.NewTicker(stetmsg.DefaultRelayPoll)
	defer poll.Stop()
	for ctx.Err() == nil {
		arrived := r.engine.Arrived() // before the query, so that no message is missed
		if r.once(work) >= stetmsg.DefaultRelayBatch {
			continue
		}
		select {
		case <-poll.C:
		case <-arrived:
		case <-ctx.Done():
		}
	}
	return nil
}

// once sends a batch. It returns of how many operations all messages were sent.
func (r *relayer) once(ctx context.Context) int {
	n, err := r.relay.Once(ctx)
	if err != nil && r.targets.logged.Swap(0) == 0 && ctx.Err() == nil && r.unasked.due() {
		r.log.Error("proxy: the store failed while messages were relayed; they will be sent again", slog.String("error", err.Error()))
	}
	return n
}

// last sends the messages of the last requests, for a few seconds, before the process ends. After
// a reload the next generation sends them.
func (g *generation) last() {
	g.background.stop()
	g.background.wait()
	if g.relayer == nil || !g.relayer.begun.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), relayDrain)
	defer cancel()
	for g.relayer.once(ctx) >= stetmsg.DefaultRelayBatch && ctx.Err() == nil { //nolint:revive // each call is a batch
	}
}

// relays adds the relayer to the parts of a generation, if Options.Parts has it.
func (g *generation) relays(c *Config, o Options) error {
	if c.Relay == nil || o.Parts&Relay == 0 {
		return nil
	}
	relay, err := stetmsg.NewRelay(g.engine, g.targets.publish, stetmsg.RelayOptions{
		Batch: stetmsg.DefaultRelayBatch, Again: c.Relay.retry(), ErrorLog: slog.New(slog.DiscardHandler), // targets logs errors itself
	})
	if err != nil {
		return c.place(err, "relay")
	}
	g.relayer = &relayer{engine: g.engine, targets: g.targets, relay: relay, log: o.ErrorLog}
	g.parts = append(g.parts, part{"relay", g.relayer.run})
	return nil
}
