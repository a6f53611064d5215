package stetmsg_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

func TestBusinessWriteAndOutcomeAreOneCommitBeforeTheAcknowledgement(t *testing.T) {
	s := onSQLite(t)
	b := newBench(t, s, stet.Policy{})
	c := b.consumerTx(s, insert)
	d := &delivery{}
	d.on = func() {
		if n, state := effects(t, s), b.state("1"); n != 1 || state != store.Completed {
			t.Errorf("%d effects, %v, at the call of the broker", n, state)
		}
	}
	for range 5 {
		if _, err := c.Handle(ctx, order{ID: "1"}, d); err != nil {
			t.Fatal(err)
		}
	}
	if n := effects(t, s); n != 1 || d.calls[4] != "ack" {
		t.Fatalf("%d effects, %v", n, d.calls)
	}
}

func TestPermanentErrorAndTheLastAttemptsAreFailuresWithoutAnEffect(t *testing.T) {
	s := onSQLite(t)
	b := newBench(t, s, stet.Policy{})
	runs := 0
	c := b.consumerTx(s, func(ctx context.Context, tx *sql.Tx, m order) ([]byte, error) {
		runs++
		if _, err := insert(ctx, tx, m); err != nil {
			return nil, err
		}
		if m.ID == "permanent" {
			return nil, stet.Permanent(errors.New("no such book"))
		}
		return nil, errors.New("deadlock detected")
	}, func(o *stetmsg.Options[order]) { o.MaxAttempts = 2 })
	wants(t, c.Decide(ctx, order{ID: "permanent"}, 1), stetmsg.DeadLetter, stetmsg.Failed)
	again := c.Decide(ctx, order{ID: "permanent"}, 1)
	wants(t, again, stetmsg.DeadLetter, stetmsg.Failed)
	if stet.ExecutionOf(again.Err) != stet.NotExecuted {
		t.Errorf("of a message whose writes were rolled back: %v", again.Err)
	}
	wants(t, c.Decide(ctx, order{ID: "used"}, 2), stetmsg.DeadLetter, stetmsg.Exhausted)
	if runs != 2 {
		t.Fatalf("%d runs", runs)
	}
	if effects(t, s) != 0 {
		t.Fatalf("%d effects", effects(t, s))
	}
	for _, id := range []string{"permanent", "used"} {
		if state := b.state(id); state != store.Failed {
			t.Errorf("%s is %v", id, state)
		}
	}
}

func TestMessageDeliveredTooOftenIsDeadLetteredAndNotSettled(t *testing.T) {
	s := onSQLite(t)
	b := newBench(t, s, stet.Policy{})
	runs := 0
	c := b.consumerTx(s, func(ctx context.Context, tx *sql.Tx, m order) ([]byte, error) {
		runs++
		return insert(ctx, tx, m)
	}, func(o *stetmsg.Options[order]) { o.MaxAttempts = 2 })
	// It, or another message, has crashed each consumer.
	d := c.Decide(ctx, order{ID: "1"}, 3)
	wants(t, d, stetmsg.DeadLetter, stetmsg.Exhausted)
	if runs != 0 || b.state("1") != store.State(0) || d.Outcome.Failed || d.Outcome.Body != nil {
		t.Fatalf("%d runs, %v, outcome %+v", runs, b.state("1"), d.Outcome)
	}
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Ack, stetmsg.Handled) // put back by an operator
	if n := effects(t, s); n != 1 {
		t.Fatalf("%d effects", n)
	}
	// Only its acknowledgements were lost.
	wants(t, c.Decide(ctx, order{ID: "1"}, 3), stetmsg.Ack, stetmsg.Replayed)
	wants(t, c.Decide(ctx, order{ID: "1", Body: "other"}, 3), stetmsg.DeadLetter, stetmsg.Mismatch)
}

func TestMessageDeliveredTooOftenIsKeptWhileTheStoreIsDown(t *testing.T) {
	s := onSQLite(t)
	down := storetest.FaultyTx(store.TxStore[*sql.Tx](s), func(c storetest.Call) storetest.Fault {
		if c.N <= 12 { // more than the engine's own tries
			return storetest.FailBefore
		}
		return storetest.NoFault
	})
	c := newBench(t, s, stet.Policy{}).consumerTx(s, insert)
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Ack, stetmsg.Handled)
	late := newBench(t, down, stet.Policy{}).consumerTx(down, insert)
	wants(t, late.Decide(ctx, order{ID: "1"}, stetmsg.DefaultMaxAttempts+1), stetmsg.Ack, stetmsg.Replayed)
}

func TestClosedEngineRetriesLater(t *testing.T) {
	s := onSQLite(t)
	b := newBench(t, s, stet.Policy{})
	inTx, leased := b.consumerTx(s, insert), b.consumer(func(context.Context, order) ([]byte, error) { return nil, nil })
	if err := b.engine.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*stetmsg.Consumer[order]{inTx, leased} {
		for n := 1; n <= 2*stetmsg.DefaultMaxAttempts; n++ {
			d := c.Decide(ctx, order{ID: "1"}, n)
			wants(t, d, stetmsg.Retry, stetmsg.Stopped)
			if d.After != time.Duration(n)*time.Second {
				t.Fatalf("delivery %d may come again after %v", n, d.After)
			}
		}
	}
}

func TestOperationThatASoundStoreRefusesIsRetriedLater(t *testing.T) {
	s := onSQLite(t)
	refuses := storetest.FaultyTx(store.TxStore[*sql.Tx](s), func(c storetest.Call) storetest.Fault {
		if c.Method == "RunTx" {
			return storetest.FailBefore
		}
		return storetest.NoFault
	})
	b := newBench(t, refuses, stet.Policy{})
	c := b.consumerTx(refuses, insert)
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.NoEffect)
	d := c.Decide(ctx, order{ID: "1"}, stetmsg.DefaultMaxAttempts+1) // and the stored record cannot be read either
	wants(t, d, stetmsg.Retry, stetmsg.Unavailable)
	if d.After <= 0 {
		t.Fatal("it comes again at once")
	}
}

func TestTransactionAbortedByItsHandlerCountsAsAnAttempt(t *testing.T) {
	s := onSQLite(t)
	b := newBench(t, s, stet.Policy{})
	c := b.consumerTx(s, func(ctx context.Context, tx *sql.Tx, m order) ([]byte, error) {
		_, _ = tx.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)") // and continues
		return insert(ctx, tx, m)
	}, func(o *stetmsg.Options[order]) { o.MaxAttempts = 2 })
	wants(t, c.Decide(ctx, order{ID: "1"}, 1), stetmsg.Retry, stetmsg.NoEffect)
	wants(t, c.Decide(ctx, order{ID: "1"}, 2), stetmsg.DeadLetter, stetmsg.Exhausted)
	if effects(t, s) != 0 || b.state("1") != store.Failed {
		t.Errorf("%d effects, %v", effects(t, s), b.state("1"))
	}
}
