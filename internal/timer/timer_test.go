package timer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if !Sleep(ctx, 900*time.Millisecond) {
			t.Error("a sleep that ended before its context reports that the context has ended")
		}
		if Sleep(ctx, time.Hour) || time.Since(began) != time.Second {
			t.Errorf("a sleep ended after %v, want it to end with its context after 1s", time.Since(began))
		}
	})
}

func TestWaitsDoubleUpToTheirBound(t *testing.T) {
	for n, want := range map[int]time.Duration{-1: 3, 0: 3, 1: 3, 2: 6, 3: 12, 5: 48, 6: 50, 1 << 30: 50} {
		if got := Doubled(n, 3, 50); got != want {
			t.Errorf("after try %d the wait is %d, want %d", n, got, want)
		}
	}
	for range 1000 {
		if d := Around(10); d < 5 || d >= 15 {
			t.Fatalf("a wait around 10 is %d", d)
		}
	}
}
