// Package stetlog writes what happens to operations to a log.
//
//	engine, err := stet.New(store, stet.Options{Observer: stetlog.New(stetlog.Options{}), ErrorLog: slog.New(slog.DiscardHandler)})
//
// Warnings and errors are for an operator: a run with an unknown outcome (marked unknown), a lost
// lease, a run that was fenced or taken over, a store that failed, a request that ran unprotected,
// a message that was not sent. Other events have the level debug. A line has the operation's names
// (observe.Event.Names), but no key, scope or body. The text of an error is that of the store, or of
// the service's own Verify.
package stetlog

import (
	"context"
	"encoding/hex"
	"log/slog"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Options configure the observer. The zero value is usable.
type Options struct {
	// Logger receives the lines. Default: the slog.Default() at the time of each event.
	Logger *slog.Logger
}

// New returns an observer that logs. It is safe for concurrent use.
//
// Each line is "stet: " and the event's name, with the attributes id, class,
// name, ref, scope_label, state, attempt, fence, elapsed, reason, status (that the service answered) and error, if there are any. From the level warn on, id is the
// full ID, for 'stet keys get --id'. Below, it is the part that differs between the keys of a scope.
func New(o Options) observe.Observer { return &observer{o} }

type observer struct{ o Options }

// Observe implements observe.Observer.
func (o *observer) Observe(ctx context.Context, ev observe.Event) {
	logger := o.o.Logger
	if logger == nil {
		logger = slog.Default()
	}
	if level := levelOf(ev); logger.Enabled(ctx, level) {
		logger.LogAttrs(ctx, level, "stet: "+ev.Kind.String(), attributes(ev, level)...)
	}
}

// levelOf returns the level of an event.
func levelOf(ev observe.Event) slog.Level {
	switch ev.Kind {
	case observe.StoreFailed, observe.Aborted, observe.FailedOpen, observe.Unsent:
		return slog.LevelError
	case observe.MarkedUnknown, observe.LeaseLost, observe.TimedOut, observe.CutOff, observe.Fenced, observe.TakenOver:
		return slog.LevelWarn
	case observe.Replayed:
		if ev.Err != nil { // the record is damaged
			return slog.LevelError
		}
	case observe.InFlight, observe.Mismatched:
		return slog.LevelDebug // its error says why the call did not wait, or what differs
	}
	if ev.Err != nil {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// The bytes of a shortened ID. The first eight of an ID are the scope's.
const shownFrom, shownTo = 8, 14

func attributes(ev observe.Event, level slog.Level) []slog.Attr {
	list := make([]slog.Attr, 0, 8)
	if ev.ID != (store.ID{}) {
		id := hex.EncodeToString(ev.ID[shownFrom:shownTo])
		if level >= slog.LevelWarn {
			id = ev.ID.String()
		}
		list = append(list, slog.String("id", id))
	}
	list = append(list, ev.Names()...)
	if ev.Kind == observe.Swept {
		list = append(list, slog.Int("marked_unknown", ev.Swept.MarkedUnknown), slog.Int("expired", ev.Swept.Expired), slog.Int("purged", ev.Swept.Purged))
	}
	if ev.State != store.None {
		list = append(list, slog.String("state", ev.State.String()))
	}
	if ev.Attempt > 0 {
		list = append(list, slog.Int("attempt", ev.Attempt))
	}
	if ev.Fence > 0 {
		list = append(list, slog.Int64("fence", ev.Fence))
	}
	if ev.Elapsed > 0 {
		list = append(list, slog.Duration("elapsed", ev.Elapsed))
	}
	if ev.Why != nil && ev.Why.Reason != "" {
		list = append(list, slog.String("reason", string(ev.Why.Reason)))
		if ev.Why.Status > 0 {
			list = append(list, slog.Int("status", ev.Why.Status))
		}
	}
	if ev.Err != nil {
		list = append(list, slog.Any("error", ev.Err))
	}
	return list
}
