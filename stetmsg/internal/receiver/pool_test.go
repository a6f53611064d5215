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

// withPool calls f with a pool, and then waits for the jobs of the pool.
func withPool(t *testing.T, slots, width int, f func(t *testing.T, p *receiver.Pool, release chan struct{})) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := receiver.NewPool(slots, width)
		f(t, p, make(chan struct{}))
		p.Wait()
	})
}

func TestReserve_WaitsForASlot(t *testing.T) {
	withPool(t, 2, 1, func(t *testing.T, p *receiver.Pool, release chan struct{}) {
		for range 2 { // one runs, one waits
			if !p.Reserve(t.Context(), 1) {
				t.Fatal("refused")
			}
			p.Run(func() { <-release })
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if p.Reserve(ctx, 1) {
			t.Fatal("a third slot was reserved")
		}
		close(release)
		if !p.Await(t.Context(), 2) || p.Free() != 2 {
			t.Fatal("the slots are not free again")
		}
	})
}

func TestStart_TakesASlotThoughNoneIsFree(t *testing.T) {
	withPool(t, 1, 1, func(t *testing.T, p *receiver.Pool, release chan struct{}) {
		for free := range 3 {
			p.Start(func() { <-release }, nil)
			if p.Free() != -free {
				t.Fatalf("%d slots are free", p.Free())
			}
		}
		roomy := make(chan bool, 1)
		go func() { roomy <- p.Await(t.Context(), 1) }()
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
		if p.Await(ctx, 1) {
			t.Fatal("room after the end")
		}
	})
}

func TestWaitingJobs_KeepTheirOrderAndArePulsed(t *testing.T) {
	withPool(t, 4, 2, func(t *testing.T, p *receiver.Pool, release chan struct{}) {
		var mu sync.Mutex
		var began, pulsed []int
		for i := range 5 {
			p.Start(func() {
				mu.Lock()
				began = append(began, i)
				mu.Unlock()
				<-release
			}, func() { pulsed = append(pulsed, i) })
			synctest.Wait()
		}
		p.Pulse()
		if !slices.Equal(began, []int{0, 1}) || !slices.Equal(pulsed, []int{2, 3, 4}) {
			t.Fatalf("%v began, %v were pulsed", began, pulsed)
		}
		release <- struct{}{}
		synctest.Wait()
		if !slices.Equal(began, []int{0, 1, 2}) {
			t.Fatalf("%v began", began)
		}
		go func() { // waiting jobs run at once
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(began) != 5 {
				t.Errorf("%v began, and Wait waits for others", began)
			}
			close(release)
		}()
		p.Wait()
		if pulsed = nil; len(began) != 5 {
			t.Fatalf("%v began", began)
		}
		if p.Pulse(); pulsed != nil {
			t.Fatal("pulsed after its end")
		}
	})
}

func TestGoexitOfAJob_ReleasesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, width := range []int{1, 3} {
			p := receiver.NewPool(3, width)
			ran := make(chan int, 3)
			for i := range 3 {
				p.Start(func() {
					ran <- i
					runtime.Goexit()
				}, nil)
				synctest.Wait()
			}
			p.Wait()
			if len(ran) != 3 || <-ran != 0 || <-ran != 1 || !p.Await(t.Context(), 3) {
				t.Fatal("jobs did not run, or slots were not released")
			}
		}
	})
}
