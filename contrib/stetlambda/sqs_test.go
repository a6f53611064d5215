package stetlambda_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func options() stetlambda.SQSOptions {
	return stetlambda.SQSOptions{Failures: stetlambda.BatchItemFailures, Options: stetmsg.Options[events.SQSMessage]{
		Operation: stetmsg.By(stetlambda.Envelope, stetmsg.Header("orders", "order-id")), ErrorLog: quiet,
	}}
}

// read reads an event of testdata.
func read[T any](t testing.TB, name string) (e T) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// batchOf is an event of messages with these keys. "g/1" is of the group g, in a FIFO queue.
func batchOf(t testing.TB, keys ...string) (e events.SQSEvent) {
	t.Helper()
	for _, key := range keys {
		m := read[events.SQSEvent](t, "sqs.json").Records[0]
		m.MessageId = "id of " + key
		m.MessageAttributes["order-id"] = events.SQSMessageAttribute{StringValue: &key, DataType: "String"}
		if group, _, ok := strings.Cut(key, "/"); ok {
			m.EventSourceARN += ".fifo"
			m.Attributes["MessageGroupId"] = group
		}
		e.Records = append(e.Records, m)
	}
	return e
}

// runs notes which messages were handled.
type runs struct {
	mu   sync.Mutex
	list []string
}

func (r *runs) add(m events.SQSMessage) (key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key = *m.MessageAttributes["order-id"].StringValue
	r.list = append(r.list, key)
	return key
}

func (r *runs) sorted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.list))
}

func failures(out events.SQSEventResponse) (ids []string) {
	for _, f := range out.BatchItemFailures {
		ids = append(ids, strings.TrimPrefix(f.ItemIdentifier, "id of "))
	}
	return ids
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestOnlyMessagesToDeliverAgainAreReturned(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	var r runs
	busy := true
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, options(), func(_ context.Context, m events.SQSMessage) ([]byte, error) {
		switch key := r.add(m); {
		case key == "busy" && busy:
			return nil, stet.Retryable(errors.New("busy"))
		case key == "bad":
			return nil, errors.New("no such book")
		case key == "panics":
			panic("oops")
		case key == "leaves":
			runtime.Goexit()
		}
		return nil, nil
	}))
	e := batchOf(t, "1", "busy", "2", "bad", "panics", "leaves", "")
	e.Records[6].MessageId = "id of none"
	for i, want := range [][]string{{"busy", "bad", "panics", "leaves", "none"}, {"bad", "panics", "leaves", "none"}} {
		out, err := f(t.Context(), e)
		if got := failures(out); err != nil || !slices.Equal(got, want) {
			t.Errorf("invocation %d: %v, %v", i, got, err)
		}
		busy = false
	}
	if want := []string{"1", "2", "bad", "busy", "busy", "leaves", "panics"}; !slices.Equal(r.sorted(), want) {
		t.Errorf("ran: %v", r.list)
	}
}

func TestRecordedEventIsHandledOnce(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	var r runs
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, options(), func(_ context.Context, m events.SQSMessage) ([]byte, error) {
		if r.add(m); m.Body != "Test message." {
			t.Error(m.Body)
		}
		return nil, nil
	}))
	for range 3 {
		out, err := f(t.Context(), read[events.SQSEvent](t, "sqs.json"))
		if b, _ := json.Marshal(out); err != nil || string(b) != `{"batchItemFailures":null}` {
			t.Errorf("%s, %v", b, err)
		}
	}
	if !slices.Equal(r.sorted(), []string{"order-1", "order-2"}) {
		t.Errorf("ran: %v", r.list)
	}
}

func TestGroupOfAFIFOQueueKeepsItsOrder(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	var r runs
	busy := true
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, options(), func(_ context.Context, m events.SQSMessage) ([]byte, error) {
		if key := r.add(m); key == "a/2" && busy {
			return nil, stet.Retryable(errors.New("busy"))
		}
		return nil, nil
	}))
	e := batchOf(t, "a/1", "b/1", "a/2", "a/3", "b/2", "a/4")
	out, err := f(t.Context(), e)
	if got := failures(out); err != nil || !slices.Equal(got, []string{"a/2", "a/3", "a/4"}) || !slices.Equal(r.sorted(), []string{"a/1", "a/2", "b/1", "b/2"}) {
		t.Errorf("%v, %v; ran %v", got, err, r.list)
	}
	busy, r.list = false, nil
	if out, err := f(t.Context(), e); err != nil || len(failures(out)) != 0 || !slices.Equal(r.list, []string{"a/2", "a/3", "a/4"}) {
		t.Errorf("%v, %v; ran %v", failures(out), err, r.list)
	}
}

func TestDeadLetterIsPutAsideAndItsGroupContinues(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	var r runs
	var dead []string
	o := options()
	down := true
	o.DeadLetter = func(_ context.Context, m events.SQSMessage, why stetmsg.Decision) error {
		if down {
			down = false
			panic("no connection")
		}
		dead = append(dead, m.MessageId+": "+string(why.Reason))
		return nil
	}
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, o, func(_ context.Context, m events.SQSMessage) ([]byte, error) {
		if r.add(m) == "a/1" {
			return nil, errors.New("no such book")
		}
		return nil, nil
	}))
	e := batchOf(t, "a/1", "a/2")
	if out, err := f(t.Context(), e); err != nil || len(failures(out)) != 2 {
		t.Errorf("%v, %v", out, err)
	}
	if out, err := f(t.Context(), e); err != nil || len(failures(out)) != 0 {
		t.Errorf("%v, %v", out, err)
	}
	if !slices.Equal(r.list, []string{"a/1", "a/2"}) || !slices.Equal(dead, []string{"id of a/1: failed"}) {
		t.Errorf("ran %v; put aside %v", r.list, dead)
	}
}

func TestWholeBatchComesAgainWhereIDsAreNotRead(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	var r runs
	o := options()
	o.Failures = stetlambda.WholeBatch
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, o, func(_ context.Context, m events.SQSMessage) ([]byte, error) {
		if key := r.add(m); key == "2" && len(r.sorted()) < 3 {
			return nil, stet.Retryable(errors.New("busy"))
		}
		return nil, nil
	}))
	if out, err := f(t.Context(), batchOf(t, "1", "2")); err == nil || len(failures(out)) != 0 {
		t.Errorf("%v, %v", out, err)
	}
	if _, err := f(t.Context(), batchOf(t, "1", "2")); err != nil || !slices.Equal(r.sorted(), []string{"1", "2", "2"}) {
		t.Errorf("%v; ran %v", err, r.list)
	}
}

// The function has 10 s, of which the last 2 are its own. Each run takes 3 s, one at a time.
func TestNoRunBeginsThatHasNoTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		var r runs
		o := options()
		o.Concurrency, o.RunTime = 1, 3*time.Second
		f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, o, func(ctx context.Context, m events.SQSMessage) ([]byte, error) {
			r.add(m)
			time.Sleep(3 * time.Second)
			return nil, ctx.Err()
		}))
		for i, want := range [][]string{{"3", "4", "5"}, {"5"}, nil} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			out, err := f(ctx, batchOf(t, "1", "2", "3", "4", "5"))
			if got := failures(out); err != nil || ctx.Err() != nil || !slices.Equal(got, want) {
				t.Errorf("invocation %d: %v, %v", i, got, err)
			}
			cancel()
		}
		if !slices.Equal(r.sorted(), []string{"1", "2", "3", "4", "5"}) {
			t.Errorf("ran %v", r.list)
		}
		_ = engine.Close()
	})
}

func TestRunThatTheFunctionsTimeEndsIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		var got []stetmsg.Decision
		o := options()
		o.Observe = func(_ context.Context, d stetmsg.Decision) { got = append(got, d) }
		f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, o, func(ctx context.Context, m events.SQSMessage) ([]byte, error) {
			<-ctx.Done()
			switch *m.MessageAttributes["order-id"].StringValue {
			case "harmless":
				stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
			case "retryable":
				return nil, stet.Retryable(ctx.Err())
			case "permanent":
				return nil, stet.Permanent(ctx.Err())
			}
			return nil, fmt.Errorf("the bank: %w", ctx.Err())
		}))
		for _, key := range []string{"unknown", "harmless", "retryable", "permanent"} {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			out, err := f(ctx, batchOf(t, key))
			if took := time.Since(begin); err != nil || len(failures(out)) != 1 || took < 8*time.Second || took > 9*time.Second {
				t.Errorf("%v, %v after %v", out, err, took)
			}
			cancel()
		}
		if len(got) != 4 || got[0].Reason != stetmsg.Unknown || got[1].Reason != stetmsg.NoEffect || got[2].Reason != stetmsg.NoEffect || got[3].Reason != stetmsg.Failed {
			t.Errorf("%+v", got)
		}
		_ = engine.Close()
	})
}

func TestTransactionOfAMessageIsRolledBackAndComesAgain(t *testing.T) {
	st := must[*sqlite.Store](t)(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{}))
	t.Cleanup(func() { _ = st.Close() })
	te := stettest.TxEngine(stettest.Engine(t, st, stet.Options{SweepEvery: -1}), store.TxStore[*sql.Tx](st))
	exec := func(query string) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, query)
			return err
		}
	}
	if err := te.InTx(t.Context(), exec("CREATE TABLE bills (n INTEGER)")); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.MaxAttempts = 3
	var r runs
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQSTx(te, o, func(ctx context.Context, tx *sql.Tx, m events.SQSMessage) ([]byte, error) {
		key := r.add(m)
		if err := exec("INSERT INTO bills VALUES (1)")(ctx, tx); err != nil || key == "bad" {
			return nil, errors.Join(err, errors.New("a deadlock"))
		}
		return nil, nil
	}))
	for i := range 5 { // SQS counts
		e := batchOf(t, "good", "bad")
		e.Records[1].Attributes["ApproximateReceiveCount"] = fmt.Sprint(i + 1)
		if out, err := f(t.Context(), e); err != nil || !slices.Equal(failures(out), []string{"bad"}) {
			t.Errorf("%v, %v", out, err)
		}
	}
	n := 0
	if err := te.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT count(*) FROM bills").Scan(&n)
	}); err != nil || n != 1 || !slices.Equal(r.sorted(), []string{"bad", "bad", "bad", "good"}) {
		t.Errorf("%d bills, %v; ran %v", n, err, r.list)
	}
}

// Those behind a message that fails are received as often as that one, without a run.
func TestDeliveriesOfAFIFOQueueAreNoAttempts(t *testing.T) {
	st := must[*sqlite.Store](t)(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{}))
	t.Cleanup(func() { _ = st.Close() })
	te := stettest.TxEngine(stettest.Engine(t, st, stet.Options{SweepEvery: -1}), store.TxStore[*sql.Tx](st))
	var r runs
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQSTx(te, options(), func(_ context.Context, _ *sql.Tx, m events.SQSMessage) ([]byte, error) {
		r.add(m)
		return nil, nil
	}))
	e := batchOf(t, "a/1")
	e.Records[0].Attributes["ApproximateReceiveCount"] = "99"
	if out, err := f(t.Context(), e); err != nil || len(failures(out)) != 0 || len(r.list) != 1 {
		t.Errorf("%v, %v; ran %v", failures(out), err, r.list)
	}
}

func TestEventsOfOthersAreRefused(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	f := must[stetlambda.SQSHandler](t)(stetlambda.SQS(engine, options(), func(context.Context, events.SQSMessage) ([]byte, error) {
		t.Error("run")
		return nil, nil
	}))
	for _, text := range []string{`{}`, `{"detail-type":"order placed","source":"shop"}`,
		`{"Records":[{"EventSource":"aws:sns","EventVersion":"1.0","Sns":{"Message":"hi"}}]}`, `{"Records":[{"eventSource":"aws:s3","s3":{}}]}`, `{"Records":[{"eventSource":"aws:sns","messageId":"1"}]}`, `{"Records":[{"eventSource":"aws:sqs"}]}`} {
		var e events.SQSEvent
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if _, err := f(t.Context(), e); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
}

func TestWrongWiringOfSQSIsRefused(t *testing.T) {
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	handle := func(context.Context, events.SQSMessage) ([]byte, error) { return nil, nil }
	for name, change := range map[string]func(*stetlambda.SQSOptions){
		"Failures":  func(o *stetlambda.SQSOptions) { o.Failures = 0 },
		"Operation": func(o *stetlambda.SQSOptions) { o.Operation = nil },
		"Reserve":   func(o *stetlambda.SQSOptions) { o.Reserve = -1 },
	} {
		o := options()
		change(&o)
		if _, err := stetlambda.SQS(engine, o, handle); stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := stetlambda.SQS(nil, options(), handle); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
	if _, err := stetlambda.SQS(engine, options(), nil); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
	if _, err := stetlambda.SQSTx[*sql.Tx](nil, options(), func(context.Context, *sql.Tx, events.SQSMessage) ([]byte, error) { return nil, nil }); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}
