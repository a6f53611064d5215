// Package stettest has what tests of several packages begin with: an engine, records of
// a store, a log, a list of events.
package stettest

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Engine returns an engine, which is closed at the end of the test.
func Engine(t testing.TB, s store.Store, o stet.Options) *stet.Engine {
	t.Helper()
	e, err := stet.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// TxEngine is stet.WithTx of a store that is the engine's.
func TxEngine[Tx any](e *stet.Engine, s store.TxStore[Tx]) *stet.TxEngine[Tx] {
	te, err := stet.WithTx(e, s)
	if err != nil {
		panic(err)
	}
	return te
}

// Eventually waits until done returns true, because of another goroutine or process.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	const patience = time.Minute
	pause := 2 * time.Millisecond
	for end := time.Now().Add(patience); !done(); pause = min(pause*5/4, 10*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		time.Sleep(pause) // between two looks
	}
}

// Log stores everything written to it. Its zero value is empty.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Events keeps the events that it observes. Its zero value is empty.
type Events struct {
	mu   sync.Mutex
	list []observe.Event
}

// Observe implements observe.Observer.
func (e *Events) Observe(_ context.Context, ev observe.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
}

// List returns the events.
func (e *Events) List() []observe.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// Count returns how many events there are of a kind.
func (e *Events) Count(kind observe.Kind) (n int) {
	for _, ev := range e.List() {
		if ev.Kind == kind {
			n++
		}
	}
	return n
}
