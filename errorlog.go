package stet

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// logEvery is how often Options.ErrorLog gets a line of one kind.
const logEvery = 10 * time.Second

// errorLog writes what an operator must know to a logger. The zero value is ready for use.
type errorLog struct {
	mu    sync.Mutex
	kinds [len(logLines)]struct {
		last    time.Time // of the last line
		skipped int       // events since then
	}
}

// due reports whether a line may be written, and how many were not since the last one.
func (l *errorLog) due(kind observe.Kind) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.kinds[kind]
	if !k.last.IsZero() && time.Since(k.last) < logEvery {
		k.skipped++
		return 0, false
	}
	skipped, k.skipped, k.last = k.skipped, 0, time.Now()
	return skipped, true
}

// logLines are the lines, by kind of event; "" for none.
var logLines = [...]string{
	observe.Parked:      "stet: the outcome of an operation is unknown until a verifier or an operator resolves it",
	observe.LeaseLost:   "stet: a run lost its lease",
	observe.Fenced:      "stet: a write of a run that is not the newest was refused",
	observe.StoreFailed: "stet: a call of the store failed",
	observe.Swept:       "stet: runs ended without an outcome; their operations are unknown until a verifier or an operator resolves them",
	observe.Unsent:      "stet: an emitted message was not sent; it is tried again",
	observe.TimedOut:    "stet: a run took longer than its Policy.RunTimeout",
	observe.CutOff:      "stet: a run had not ended when the engine was closed",
	observe.Aborted:     "stet: a transaction was rolled back because of what its function did; nothing was executed",
}

const sweepFailed = "stet: a sweep failed; it is tried again"

// write logs an event, unless a line of its kind was written within logEvery.
func (l *errorLog) write(ctx context.Context, to *slog.Logger, ev observe.Event) {
	if int(ev.Kind) >= len(logLines) || logLines[ev.Kind] == "" || ev.Kind == observe.Swept && ev.Err == nil && ev.Swept.Parked == 0 {
		return
	}
	skipped, ok := l.due(ev.Kind)
	if !ok {
		return
	}
	level, line := slog.LevelWarn, logLines[ev.Kind]
	var list []slog.Attr
	switch ev.Kind {
	case observe.StoreFailed, observe.Aborted, observe.Unsent:
		level = slog.LevelError
	case observe.Swept:
		if list = append(list, slog.Int("operations", ev.Swept.Parked)); ev.Err != nil {
			line = sweepFailed
		}
	}
	if ev.ID != (store.ID{}) {
		list = append(list, slog.String("id", ev.ID.String()))
	}
	if ev.Class != "" {
		list = append(list, slog.String("class", ev.Class))
	}
	if skipped > 0 {
		list = append(list, slog.Int("not_logged", skipped))
	}
	if ev.Err != nil {
		list = append(list, slog.Any("error", ev.Err))
	}
	to.LogAttrs(ctx, level, line, list...)
}
