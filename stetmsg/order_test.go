package stetmsg_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
	"github.com/stet-go/stet/store/memory"
)

func TestConcurrencyOfOne_HandlesInTheOrderReceived(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	o := options()
	o.Concurrency = 1
	var got []string
	c, err := stetmsg.New(engine, o, func(_ context.Context, m order) ([]byte, error) {
		got = append(got, m.ID)
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pool := receiver.NewPool(2, 1)
	for i := range 2000 {
		pool.Reserve(t.Context(), 1)
		pool.Run(func() { _, _ = c.Handle(t.Context(), order{ID: strconv.Itoa(i), Body: "x"}, mute{}) })
	}
	pool.Await(t.Context(), 2) // Wait would run the waiting messages at once
	pool.Wait()
	for i, id := range got {
		if id != strconv.Itoa(i) {
			t.Fatalf("message %s came as number %d", id, i)
		}
	}
	if len(got) != 2000 {
		t.Fatalf("%d messages", len(got))
	}
}
