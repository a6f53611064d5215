package stetmsg_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/memory"
)

// BenchmarkHandle is what a message costs with the memory store and a handler
// that does nothing.
func BenchmarkHandle(b *testing.B) {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	c, err := stetmsg.New(engine, options(), func(context.Context, order) ([]byte, error) { return nil, nil })
	if err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Handle(context.Background(), order{ID: strconv.FormatInt(n.Add(1), 10), Body: "five books"}, mute{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

type mute struct{ stetmsg.Delivery }

func (mute) Deliveries() int           { return 1 }
func (mute) Ack(context.Context) error { return nil }
