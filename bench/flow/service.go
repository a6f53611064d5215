package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
)

var answer = []byte(`{"shipped":true}`)

// tally counts executions by key. Where it is gated, each waits for the gate to open.
type tally struct {
	mu   sync.Mutex
	ran  map[string]int
	gate chan struct{} // nil: open
	told chan struct{} // gets one for each execution, if it is not nil
}

func newTally() *tally { return &tally{ran: make(map[string]int)} }

// shut has executions wait from now on, until open is called.
func (t *tally) shut() (open func()) {
	gate := make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gate = gate
	return sync.OnceFunc(func() { close(gate) })
}

// execute counts one execution.
func (t *tally) execute(key string) {
	t.mu.Lock()
	t.ran[key]++
	gate := t.gate
	t.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if t.told != nil {
		t.told <- struct{}{}
	}
}

// ServeHTTP implements http.Handler: it is the service behind the sidecar.
func (t *tally) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	t.execute(r.Header.Get("Idempotency-Key"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(answer)
}

// total is how many operations have run.
func (t *tally) total() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.ran)
}

// missing reports whether some of the operations have not run.
func (t *tally) missing(keys map[string]bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range keys {
		if t.ran[key] == 0 {
			return true
		}
	}
	return false
}

// check compares what was accepted with what has run, once all has ended.
func (t *tally) check(what string, accepted map[string]bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	twice, lost := 0, 0
	for _, n := range t.ran {
		if n > 1 {
			twice++
		}
	}
	for key := range maps.Keys(accepted) {
		if t.ran[key] == 0 {
			lost++
		}
	}
	if twice > 0 || lost > 0 {
		return fmt.Errorf("%s: of %d operations, %d ran more than once, and %d never, though they were accepted", what, len(accepted), twice, lost)
	}
	return nil
}
