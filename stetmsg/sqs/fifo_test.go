package sqs_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/sqs"
	"github.com/stet-go/stet/store/sqlite"
)

// A message that fails again and again is in front of others of its group, which
// fail once. In a transaction attempts are counted by what SQS has passed.
func TestFailingMessageUsesNoAttemptsOfItsGroup(t *testing.T) {
	f := newFixture(t)
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	f.engine, err = stet.New(store, stet.Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.engine.Close()
	var mu sync.Mutex
	runs, failed := map[string]int{}, map[string]bool{}
	c, err := stetmsg.NewTx(stettest.TxEngine(f.engine, store), stetmsg.Options[types.Message]{
		Operation: stetmsg.By(sqs.Envelope, stetmsg.Header("orders", "id")), MaxAttempts: 3, ErrorLog: quiet,
		Backoff: func(int) time.Duration { return 900 * time.Millisecond },
		Observe: func(_ context.Context, d stetmsg.Decision) {
			mu.Lock()
			defer mu.Unlock()
			for _, id := range []string{"poison", "2", "3", "4"} {
				if d.ID == f.engine.ID("orders", id) && d.Action == stetmsg.DeadLetter {
					failed[id] = true
				}
			}
		},
	}, func(ctx context.Context, _ *sql.Tx, _ types.Message) ([]byte, error) {
		key := stet.FromContext(ctx).Op().Key
		mu.Lock()
		defer mu.Unlock()
		if runs[key]++; key == "poison" || runs[key] == 1 {
			return nil, errors.New("a deadlock: the next try may work")
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ran = append(f.ran, key)
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.send("q.fifo", "g", "poison", "2", "3", "4")
	f.receive(c, sqs.Options{QueueURL: "q.fifo", DeadLetterQueueURL: "dead.fifo"})
	if len(failed) != 1 || !failed["poison"] || runs["poison"] != 3 || !slices.Equal(f.ran, []string{"2", "3", "4"}) {
		t.Errorf("dead-lettered: %v; runs: %v; handled: %v", failed, runs, f.ran)
	}
}

// A FIFO queue drops messages with a deduplication ID that it has seen in the
// last five minutes, and says that it took it.
func TestRedrivenFIFOMessageHasAnotherDeadLetter(t *testing.T) {
	f := newFixture(t)
	never := func(context.Context, string) error { return errors.New("it cannot be") }
	for n := 1; n <= 2; n++ {
		f.send("q.fifo", "g", "1") // the second time by an operator
		f.run("q.fifo", "dead.fifo", 0, never)
		if got := f.queue("dead.fifo"); len(got) != n {
			t.Fatalf("%d dead letters, want %d", len(got), n)
		}
	}
}

func TestDeadLetterNearTheSizeLimitIsStored(t *testing.T) {
	f := newFixture(t)
	for n, room := range []int{0, len("stet-reason") + 20, 500} {
		f.mu.Lock()
		f.limit = 0
		f.mu.Unlock()
		f.send("q", "", "large")
		f.mu.Lock()
		f.queues["q"][0].Body = strings.Repeat("x", 1000)
		f.limit = 1000 + len("id") + len("String") + len("large") + room
		f.mu.Unlock()
		f.run("q", "dead", 0, func(context.Context, string) error { return errors.New(strings.Repeat("long ", 200)) })
		got := f.queue("dead")
		if len(got) != n+1 || len(got[n].Body) != 1000 {
			t.Fatalf("with room for %d bytes there are %d dead letters", room, len(got))
		}
		if _, has := got[n].Attributes[sqs.ReasonAttribute]; has != (room > 0) {
			t.Errorf("with room for %d bytes it has the attributes %v", room, got[n].Attributes)
		}
	}
}

// Received messages are extended, and therefore received once, however long others
// take.
func TestReceivedMessagesAreExtended(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, group := range []string{"a", "b", "c", "d", "e", "f"} {
		f.send("q.fifo", group, group)
	}
	begun := make(chan struct{}, 6)
	var seen []stored
	look := sync.OnceFunc(func() {
		time.Sleep(11 * time.Second) // longer than the visibility timeout
		seen = f.queue("q.fifo")
	})
	c := f.consumer(func(context.Context, string) error {
		begun <- struct{}{}
		look()
		return nil
	})
	f.receive(c, sqs.Options{QueueURL: "q.fifo", DeadLetterQueueURL: "dead.fifo", Visibility: 9 * time.Second, Prefetch: 2})
	received := 0
	for _, m := range seen {
		if m.count > 1 {
			t.Errorf("message %s was received %d times", m.Group, m.count)
		}
		received += min(m.count, 1)
	}
	if received > 2 || len(f.ran) != 6 {
		t.Errorf("%d were in flight, ran %v", received, f.ran)
	}
}
