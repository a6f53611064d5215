package stetmsg_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

// The process that gets the message next would die of it too.
func TestPanicOfOperationOrSplitIsDeadLettered(t *testing.T) {
	b := inMemory(t, stet.Policy{})
	never := func(context.Context, order) ([]byte, error) {
		t.Error("it was handled")
		return nil, nil
	}
	for name, change := range map[string]func(*stetmsg.Options[order]){
		"Operation": func(o *stetmsg.Options[order]) {
			o.Operation = func(m order) (stet.Op, error) { return stet.Op{Scope: "orders", Key: m.ID[:100]}, nil }
		},
		"Split": func(o *stetmsg.Options[order]) {
			o.Split = func(m order) ([]order, error) { return []order{m}[5:], nil }
		},
		"Split, nothing": func(o *stetmsg.Options[order]) { o.Split = func(order) ([]order, error) { return nil, nil } },
	} {
		t.Run(name, func(t *testing.T) {
			wants(t, b.consumer(never, change).Decide(t.Context(), order{ID: "1"}, 1), stetmsg.DeadLetter, stetmsg.Invalid)
		})
	}
}

// A class may be what the message says.
func TestMessageOfAnUnknownClassIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, stet.Policy{})
		c := b.consumer(func(context.Context, order) ([]byte, error) { return nil, nil }, func(o *stetmsg.Options[order]) {
			o.Operation = func(m order) (stet.Op, error) { return stet.Op{Scope: "orders", Key: m.ID, Class: m.Body}, nil }
		})
		for n := 1; n < stetmsg.DefaultMaxAttempts; n++ {
			wants(t, c.Decide(t.Context(), order{"1", "no such"}, n), stetmsg.Retry, stetmsg.Unsettled)
		}
		wants(t, c.Decide(t.Context(), order{"1", "no such"}, stetmsg.DefaultMaxAttempts), stetmsg.DeadLetter, stetmsg.Invalid)
	})
}
