package stettest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Recorder is a testing.TB whose failures stay with it.
type Recorder struct {
	testing.TB
	failing func()

	mu       sync.Mutex
	failed   bool
	lines    []string
	cleanups []func()
}

// Record calls do, which may fail, and then the functions of Cleanup. failing is called
// at each failure. It may be nil.
func Record(t testing.TB, failing func(), do func(testing.TB)) *Recorder {
	t.Helper()
	r := &Recorder{TB: t, failing: failing}
	done := make(chan struct{})
	go func() { // of its own, because failing ends it
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
		}()
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		do(r)
	}()
	<-done
	return r
}

// Text returns the lines of the log and of failures.
func (r *Recorder) Text() string { return strings.Join(r.lines, "\n") }

func (r *Recorder) note(fail bool, line string) {
	if fail && r.failing != nil {
		r.failing()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fail
	r.lines = append(r.lines, line)
}

// Cleanup implements testing.TB, as do the methods that follow.
func (r *Recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *Recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *Recorder) Helper()                           {}
func (r *Recorder) Fail()                             { r.note(true, "failed") }
func (r *Recorder) FailNow()                          { r.Fail(); runtime.Goexit() }
func (r *Recorder) Log(args ...any)                   { r.note(false, fmt.Sprint(args...)) }
func (r *Recorder) Logf(format string, args ...any)   { r.note(false, fmt.Sprintf(format, args...)) }
func (r *Recorder) Error(args ...any)                 { r.note(true, fmt.Sprint(args...)) }
func (r *Recorder) Errorf(format string, args ...any) { r.note(true, fmt.Sprintf(format, args...)) }
func (r *Recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *Recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
