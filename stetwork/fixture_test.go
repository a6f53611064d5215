package stetwork_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

type parcel struct{ Book string }

type receipt struct{ Number int }

// bench is an engine on a store, and a worker.
type bench struct {
	t      *testing.T
	store  store.Store
	engine *stet.Engine
	worker *stetwork.Worker
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newEngine(t *testing.T, store store.Store, p stet.Policy) *stet.Engine {
	t.Helper()
	e := stettest.Engine(t, store, stet.Options{Policy: p, SweepEvery: 10 * time.Second})
	return e
}

func newBench(t *testing.T, store store.Store, o stetwork.Options, p stet.Policy) *bench {
	t.Helper()
	o.ErrorLog = quiet()
	b := &bench{t: t, store: store, engine: newEngine(t, store, p)}
	var err error
	if b.worker, err = stetwork.New(b.engine, o); err != nil {
		t.Fatal(err)
	}
	return b
}

// inMemory runs f in a bubble of its own time.
func inMemory(t *testing.T, o stetwork.Options, p stet.Policy, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newBench(t, memory.New(memory.Options{}), o, p)) })
}

// runs has the worker run until the test ends, or stop is called.
func (b *bench) runs() (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.worker.Run(ctx) }()
	ended := false
	stop = func() {
		b.t.Helper()
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	}
	b.t.Cleanup(stop)
	return stop
}

// accept accepts an operation for the handler of that name.
func (b *bench) accept(name, key string) store.ID {
	b.t.Helper()
	return b.acceptOf(name, key, parcel{Book: key})
}

func (b *bench) acceptOf(name, key string, payload any) store.ID {
	b.t.Helper()
	work, err := stetwork.NewWork(name, payload)
	if err != nil {
		b.t.Fatal(err)
	}
	st, err := b.engine.Accept(b.t.Context(), stet.Op{Scope: "shop", Key: key}, work)
	if err != nil {
		b.t.Fatal(err)
	}
	return st.Record.ID
}

func (b *bench) status(id store.ID) stet.Status {
	b.t.Helper()
	st, err := b.engine.Lookup(context.Background(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return st
}

// await waits until the operation is in one of the states.
func (b *bench) await(id store.ID, states ...store.State) stet.Status {
	b.t.Helper()
	for end := time.Now().Add(24 * time.Hour); ; time.Sleep(50 * time.Millisecond) {
		st := b.status(id)
		for _, s := range states {
			if st.Record.State == s {
				return st
			}
		}
		if time.Now().After(end) {
			b.t.Fatalf("the operation is %v for a day; want %v", st.Record.State, states)
		}
	}
}

// failed fails the test unless the operation has failed with that text.
func (b *bench) failed(id store.ID, text string) {
	b.t.Helper()
	st := b.await(id, store.Failed, store.Completed, store.Unknown)
	var own *stet.Error
	if err := st.Outcome.Decode(new(any)); st.Record.State != store.Failed || !errors.As(err, &own) || own.Cause.Error() != text {
		b.t.Fatalf("%v with %v; want failed with %q", st.Record.State, err, text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
