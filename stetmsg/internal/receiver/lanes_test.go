package receiver_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

func TestJobsOfALaneKeepTheirOrderAndOthersPassThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := receiver.NewLanes(6, 6)
		var mu sync.Mutex
		var order []string
		for _, name := range []string{"a1", "a2", "b1", "a3", "b2", "-"} {
			lane := name[:1]
			if lane == "-" {
				lane = ""
			}
			l.Go(t.Context(), lane, func() {
				if lane == "a" {
					time.Sleep(time.Minute)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
			})
			synctest.Wait()
		}
		l.Wait()
		if want := []string{"b1", "b2", "-", "a1", "a2", "a3"}; !slices.Equal(order, want) {
			t.Fatal(order)
		}
	})
}

func TestNoMoreAreInHandThanThereAreSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := receiver.NewLanes(2, 2)
		release := make(chan struct{})
		for range 2 {
			if !l.Go(t.Context(), "x", func() { <-release }) { // one runs, one waits
				t.Fatal("refused")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if l.Go(ctx, "", func() { t.Error("run") }) {
			t.Fatal("a third is in hand")
		}
		close(release)
		if !l.Await(t.Context(), 2) || l.Free() != 2 {
			t.Fatal("the slots are not free again")
		}
		l.Wait()
	})
}

// job is a receiver.Job.
type job struct{ run, pulse func() }

func (j job) Run()   { j.run() }
func (j job) Pulse() { j.pulse() }

func TestStartNeedsNoRoomButTakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := receiver.NewLanes(1, 1)
		release := make(chan struct{})
		for free := range 3 {
			l.Start(job{run: func() { <-release }})
			if l.Free() != -free {
				t.Fatalf("%d slots are free", l.Free())
			}
		}
		roomy := make(chan bool, 1)
		go func() { roomy <- l.Await(t.Context(), 1) }()
		for range 2 {
			release <- struct{}{}
			synctest.Wait()
			if len(roomy) > 0 {
				t.Fatal("there is room before there is a slot")
			}
		}
		close(release)
		if !<-roomy {
			t.Fatal("there is no room")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if l.Await(ctx, 1) {
			t.Fatal("room after the end")
		}
		l.Wait()
	})
}

func TestJobsWaitInOrderAndArePulsedWhileOthersRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := receiver.NewLanes(4, 2)
		release := make(chan struct{})
		var mu sync.Mutex
		var began, pulsed []int
		for i := range 5 {
			l.Start(job{run: func() {
				mu.Lock()
				began = append(began, i)
				mu.Unlock()
				<-release
			}, pulse: func() { pulsed = append(pulsed, i) }})
			synctest.Wait()
		}
		l.Pulse()
		if !slices.Equal(began, []int{0, 1}) || !slices.Equal(pulsed, []int{2, 3, 4}) {
			t.Fatalf("%v began, %v were pulsed", began, pulsed)
		}
		release <- struct{}{}
		synctest.Wait()
		if !slices.Equal(began, []int{0, 1, 2}) {
			t.Fatalf("%v began", began)
		}
		go func() { // those that wait find out what they wait for at once
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(began) != 5 {
				t.Errorf("%v began, and Wait waits for others", began)
			}
			close(release)
		}()
		l.Wait()
		if pulsed = nil; len(began) != 5 {
			t.Fatalf("%v began", began)
		}
		if l.Pulse(); pulsed != nil {
			t.Fatal("pulsed after its end")
		}
	})
}

func TestLaneGoesOnAfterAGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, width := range []int{1, 3} {
			for _, lane := range []string{"", "x"} {
				l := receiver.NewLanes(3, width)
				ran := make(chan int, 3)
				for i := range 3 {
					l.Go(t.Context(), lane, func() {
						ran <- i
						runtime.Goexit()
					})
					synctest.Wait()
				}
				l.Wait()
				if len(ran) != 3 || <-ran != 0 || <-ran != 1 || !l.Await(t.Context(), 3) {
					t.Fatal("jobs were left, or slots were lost")
				}
			}
		}
	})
}

// A new goroutine would have to grow its stack for each message.
func TestGoroutinesAreUsedAgainAndEndWithWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := receiver.NewLanes(4, 4)
		before := runtime.NumGoroutine()
		for range 2 { // it continues after Wait
			for range 10 {
				for range 2 {
					l.Go(t.Context(), "", func() {})
				}
				synctest.Wait()
			}
			if n := runtime.NumGoroutine() - before; n < 1 || n > 2 {
				t.Errorf("%d goroutines for two jobs at a time", n)
			}
			l.Wait()
			synctest.Wait()
			if n := runtime.NumGoroutine() - before; n > 0 {
				t.Errorf("%d goroutines are left", n)
			}
		}
	})
}
