package receiver_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

func TestJobsOfALaneKeepTheirOrderAndOthersPassThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := receiver.NewLanes(6)
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
		l := receiver.NewLanes(2)
		release := make(chan struct{})
		for range 2 {
			if !l.Go(t.Context(), "x", func() { <-release }) { // one runs, one waits
				t.Fatal("refused")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if l.Free() != 0 || l.Go(ctx, "", func() { t.Error("run") }) {
			t.Fatal("a third is in hand")
		}
		close(release)
		if !l.Await(t.Context(), 2) {
			t.Fatal("the slots are not free again")
		}
		l.Wait()
	})
}
