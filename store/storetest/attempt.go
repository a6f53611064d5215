package storetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	maxTries = 3 // of a case on a real clock, the first included
	longer   = 3 // times the Unit of the last try
)

// on tries the claim on a fresh store. Where the clock is real, a step that a busy
// machine delays may come when a lease has run out that the case takes for a live one:
// then a failure says nothing of the store. So if a case about time fails, and more than
// half a unit went by in which it did not mean to wait, it is tried again with a longer
// unit, and the log says so.
func (c check) on(t testing.TB, h Harness) {
	t.Helper()
	if h.Advance != nil {
		c.run(newFixture(t, h))
		return
	}
	for try := 1; ; try++ {
		f := newFixture(t, h)
		a := &attempt{TB: t}
		f.TB = a
		late := a.run(f, c.run)
		if !a.Failed() || !f.timed.Load() || f.certain.Load() || late <= h.Unit/2 || try == maxTries {
			a.report()
			return
		}
		t.Logf("this try says nothing of the store: %v went by where no time was to pass, with a Unit of %v; tried again with %v. It said:\n%s",
			late, h.Unit, longer*h.Unit, a.text())
		h.Unit *= longer
	}
}

// attempt is a testing.TB that keeps to itself how it went.
type attempt struct {
	testing.TB

	mu     sync.Mutex
	failed bool
	lines  []string
}

// run runs a check to its end, and returns for how long it took longer than it meant to.
func (a *attempt) run(f *fixture, check func(*fixture)) (late time.Duration) {
	began, done := time.Now(), make(chan struct{})
	go func() { // of its own, because failing ends it
		defer close(done)
		check(f)
	}()
	<-done
	return time.Since(began) - time.Duration(f.passed.Load())
}

// report is how it went, as the test's own.
func (a *attempt) report() {
	a.TB.Helper()
	switch {
	case a.Failed():
		a.TB.Error(a.text())
	case len(a.lines) > 0:
		a.TB.Log(a.text())
	}
}

func (a *attempt) text() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.lines, "\n")
}

func (a *attempt) note(fail bool, line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = a.failed || fail
	if line != "" {
		a.lines = append(a.lines, line)
	}
}

func (a *attempt) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

func (a *attempt) Helper()                           {}
func (a *attempt) Fail()                             { a.note(true, "") }
func (a *attempt) FailNow()                          { a.Fail(); runtime.Goexit() }
func (a *attempt) Log(args ...any)                   { a.note(false, fmt.Sprint(args...)) }
func (a *attempt) Logf(format string, args ...any)   { a.note(false, fmt.Sprintf(format, args...)) }
func (a *attempt) Error(args ...any)                 { a.note(true, fmt.Sprint(args...)) }
func (a *attempt) Errorf(format string, args ...any) { a.note(true, fmt.Sprintf(format, args...)) }
func (a *attempt) Fatal(args ...any)                 { a.Error(args...); runtime.Goexit() }
func (a *attempt) Fatalf(format string, args ...any) { a.Errorf(format, args...); runtime.Goexit() }
