package stetwork_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestRecordDecidesTheHandler(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		ran := make(map[string]int)
		for _, name := range []string{"ship", "refund"} {
			must(t, stetwork.Handle(b.worker, name, func(context.Context, parcel) (receipt, error) { ran[name]++; return receipt{}, nil }))
		}
		id := b.accept("ship", "Emma")
		must(t, b.worker.Do(context.Background(), stet.Item{ID: id, Name: "refund"})) // late, or forged
		b.await(id, store.Completed)
		other := b.accept("elsewhere", "Persuasion")
		if err := b.worker.Do(context.Background(), stet.Item{ID: other, Name: "refund"}); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%v; want that nothing here handles it", err)
		}
		b.await(other, store.Accepted)
		time.Sleep(time.Hour)
		run, err := b.engine.Take(t.Context(), stet.Item{ID: other})
		must(t, err)
		if run.Counted != 1 { // what nobody has run uses up no attempt
			t.Errorf("%d attempts count", run.Counted)
		}
		if ran["ship"] != 1 || ran["refund"] != 0 {
			t.Errorf("what was to be shipped: %v", ran)
		}
	})
}

func TestRecordDecidesThePolicy(t *testing.T) {
	e, err := stet.New(memory.New(memory.Options{}), stet.Options{
		Policy: stet.Policy{RunTimeout: time.Second}, Classes: map[string]stet.Policy{"slow": {RunTimeout: time.Hour}},
	})
	must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	w, err := stetwork.New(e, stetwork.Options{ErrorLog: quiet()})
	must(t, err)
	var within time.Duration
	must(t, stetwork.Handle(w, "ship", func(ctx context.Context, _ []byte) (string, error) {
		end, _ := ctx.Deadline()
		within = time.Until(end)
		return "", nil
	}))
	st, err := e.Accept(context.Background(), stet.Op{Scope: "shop", Key: "1", Class: "slow"}, stet.Work{Name: "ship"})
	must(t, err)
	must(t, w.Do(context.Background(), stet.Item{ID: st.Record.ID, Name: "ship"}))
	if within < time.Minute {
		t.Errorf("an operation of a class that may take an hour had %v", within)
	}
}

func TestNoRunBeginsAfterTheContextHasEnded(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (string, error) { return "", nil }))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for i := range 50 {
			id := b.accept("ship", strconv.Itoa(i))
			if err := b.worker.Do(ctx, stet.Item{ID: id, Name: "ship"}); stet.KindOf(err) != stet.KindClosed || b.status(id).Record.Attempt != 0 {
				t.Fatalf("%v, attempt %d", err, b.status(id).Record.Attempt)
			}
		}
	})
}

func TestPayloadThatDoesNotFitIsNotInTheLog(t *testing.T) {
	var log bytes.Buffer
	w, err := stetwork.New(newEngine(t, memory.New(memory.Options{}), stet.Policy{}), stetwork.Options{ErrorLog: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	must(t, stetwork.Handle(w, "charge", func(context.Context, struct {
		Card  int32
		Until time.Time
	}) (string, error) {
		return "", nil
	}))
	for i, payload := range []string{`{"Card":4111111111111111}`, `{"Until":"4111111111111111"}`, `4111111111111111 x`} {
		st, err := w.Engine().Accept(context.Background(), stet.Op{Scope: "shop", Key: strconv.Itoa(i)}, stet.Work{Name: "charge", Payload: []byte(payload)})
		must(t, err)
		must(t, w.Do(context.Background(), stet.Item{ID: st.Record.ID, Name: "charge"}))
	}
	if strings.Contains(log.String(), "4111") || strings.Count(log.String(), "the payload is not what the handler takes") != 3 {
		t.Errorf("%s", log.String())
	}
}
