package stetmsg_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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

// A record that cannot be read is no store that cannot be used: its message must
// not stay in flight permanently, with others behind it.
func TestMessageWithADamagedRecordIsDeadLettered(t *testing.T) {
	s := onSQLite(t)
	b := newBench(t, s, stet.Policy{})
	attempts := func(o *stetmsg.Options[order]) { o.MaxAttempts = 3 }
	consumers := map[string]*stetmsg.Consumer[order]{
		"lease": b.consumer(func(context.Context, order) ([]byte, error) { return nil, errors.New("ran") }, attempts),
		"transaction": b.consumerTx(s, func(context.Context, *sql.Tx, order) ([]byte, error) {
			t.Error("a message ran whose record cannot be read")
			return nil, nil
		}, attempts),
	}
	wants(t, consumers["lease"].Decide(t.Context(), order{"1", "five books"}, 1), stetmsg.DeadLetter, stetmsg.Failed)
	for _, how := range []string{"state = 77", "owner = x'00'"} {
		id := b.engine.ID("orders", "1")
		if _, err := s.DB().ExecContext(t.Context(), "UPDATE stet_records SET "+how+" WHERE id = ?", id[:]); err != nil {
			t.Fatal(err)
		}
		for name, c := range consumers {
			t.Run(name+", "+how, func(t *testing.T) {
				for n := 1; n <= 3; n++ {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					d := c.Decide(ctx, order{"1", "five books"}, n)
					cancel()
					if want := map[bool]stetmsg.Action{true: stetmsg.DeadLetter}[n == 3]; d.Action != want || d.Reason != stetmsg.Unknown || want == stetmsg.Retry && d.After == 0 {
						t.Errorf("delivery %d: %v, %v after %v (%v)", n, d.Action, d.Reason, d.After, d.Err)
					}
				}
			})
		}
	}
}
