package stethttp_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// looked is a store that counts how often work and notes are read.
type looked struct {
	*memory.Store
	n atomic.Int64
}

func (s *looked) Look(ctx context.Context, id store.ID) (store.Record, error) {
	s.n.Add(1)
	return s.Store.Look(ctx, id)
}

// A stream is open for as long as a page is, and its operation may
// have a megabyte of work and another one of notes.
func TestStreamDoesNotReadTheWorkEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &looked{Store: memory.New(memory.Options{})}
		b := newBubble(t, setup{async: &stethttp.AsyncOptions{}, store: s})
		location := b.order().Header().Get("Location")
		before := s.n.Load()
		b.watch(t.Context(), httptest.NewRecorder(), location)
		if n := s.n.Load() - before; n != 1 {
			t.Errorf("while it waits: %d times", n)
		}
		run := b.take()
		before = s.n.Load()
		time.AfterFunc(30*time.Second, func() { _ = run.Progress(context.Background(), 0.5, "half way") })
		w := httptest.NewRecorder()
		b.watch(t.Context(), w, location)
		if n := s.n.Load() - before; n > 20 || !strings.Contains(w.Body.String(), "half way") {
			t.Errorf("while it runs: %d times; %s", n, w.Body)
		}
		if err := run.Release(context.Background(), stet.Again{}); err != nil {
			t.Error(err)
		}
	})
}
