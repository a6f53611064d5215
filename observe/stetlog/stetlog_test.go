package stetlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/observe/stetlog"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// lines are what the observer logs of the events, from a level on.
func lines(t *testing.T, from slog.Level, events ...observe.Event) (all []map[string]any) {
	t.Helper()
	var out bytes.Buffer
	o := stetlog.New(stetlog.Options{Logger: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: from}))})
	for _, ev := range events {
		o.Observe(t.Context(), ev)
	}
	for d := json.NewDecoder(&out); d.More(); {
		var line map[string]any
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	return all
}

func TestEventsForAnOperatorAreWarningsOrErrors(t *testing.T) {
	failed := errors.New("disk full")
	for _, c := range []struct {
		kind observe.Kind
		err  error
		want string
	}{
		{observe.MarkedUnknown, nil, "WARN"}, {observe.LeaseLost, failed, "WARN"}, {observe.TimedOut, failed, "WARN"}, {observe.CutOff, failed, "WARN"}, {observe.Fenced, failed, "WARN"},
		{observe.TakenOver, nil, "WARN"}, {observe.StoreFailed, failed, "ERROR"}, {observe.FailedOpen, failed, "ERROR"},
		{observe.Replayed, failed, "ERROR"}, {observe.Resolved, failed, "WARN"}, {observe.Swept, failed, "WARN"},
		{observe.InFlight, failed, "DEBUG"}, {observe.Replayed, nil, "DEBUG"}, {observe.Resolved, nil, "DEBUG"},
		{observe.Claimed, nil, "DEBUG"}, {observe.Mismatched, nil, "DEBUG"}, {observe.Expired, nil, "DEBUG"},
		{observe.ToldUnknown, nil, "DEBUG"}, {observe.Settled, nil, "DEBUG"}, {observe.Settled, errors.New("the result was not kept"), "WARN"}, {observe.Released, nil, "DEBUG"}, {observe.Swept, nil, "DEBUG"},
	} {
		got := lines(t, slog.LevelDebug, observe.Event{Kind: c.kind, ID: store.Digest("", "s", "k"), Err: c.err})
		if len(got) != 1 || got[0]["level"] != c.want || got[0]["msg"] != "stet: "+c.kind.String() || (got[0]["error"] != nil) != (c.err != nil) {
			t.Errorf("%v with %v: %v, want %s", c.kind, c.err, got, c.want)
		}
	}
}

func TestLineHasOnlyTheFieldsOfTheEvent(t *testing.T) {
	id := store.Digest("", "s", "k")
	got := lines(t, slog.LevelDebug, observe.Event{Kind: observe.Settled, ID: id, Class: "payments", State: store.Completed, Fence: 7, Attempt: 2, Elapsed: time.Second},
		observe.Event{Kind: observe.Swept, Swept: store.Swept{MarkedUnknown: 1, Expired: 2, Purged: 3}})
	for i, want := range []string{
		`{"attempt":2,"class":"payments","elapsed":1000000000,"fence":7,"id":"` + id.String()[16:28] + `","state":"completed"}`,
		`{"expired":2,"marked_unknown":1,"purged":3}`,
	} {
		for _, name := range []string{"time", "level", "msg"} {
			delete(got[i], name)
		}
		if b, _ := json.Marshal(got[i]); string(b) != want {
			t.Errorf("%s\nwant %s", b, want)
		}
	}
}

// An ID begins with its scope's: cut there, it would be the same for all keys.
func TestShortenedIDsOfKeysInAScopeDiffer(t *testing.T) {
	a, b := store.Digest("", "s", "a"), store.Digest("", "s", "b")
	got := lines(t, slog.LevelDebug, observe.Event{Kind: observe.Claimed, ID: a}, observe.Event{Kind: observe.Claimed, ID: b}, observe.Event{Kind: observe.MarkedUnknown, ID: a})
	if got[0]["id"] == got[1]["id"] || len(got[0]["id"].(string)) != 12 || got[2]["id"] != a.String() || !strings.Contains(a.String(), got[0]["id"].(string)) {
		t.Errorf("got %v; want got[0][\"id\"] != got[1][\"id\"], len(got[0][\"id\"].(string)) == 12, got[2][\"id\"] == a.String(), strings.Contains(a.String(), got[0][\"id\"].(string))", got)
	}
}

func TestDisabledLoggerDoesNotAllocate(t *testing.T) {
	o := stetlog.New(stetlog.Options{Logger: slog.New(slog.DiscardHandler)})
	ev := observe.Event{Kind: observe.MarkedUnknown, ID: store.Digest("", "s", "k")}
	if n := testing.AllocsPerRun(100, func() { o.Observe(context.Background(), ev) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNoKeyScopeOrResultIsLogged(t *testing.T) {
	var out bytes.Buffer
	next := 0
	o := observe.Join(stetlog.New(stetlog.Options{Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}),
		observe.Func(func(context.Context, observe.Event) { next++ }))
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Observer: o, SweepEvery: -1})
	op := stet.Op{Scope: "canary-scope", Key: "canary-key"}
	for range 2 {
		_, _ = stet.Do(t.Context(), engine, op, func(context.Context) (string, error) { return "canary-result", nil })
	}
	op.Key = "canary-key-2"
	for range 2 {
		_, _ = stet.Do(t.Context(), engine, op, func(ctx context.Context) (string, error) {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return "", errors.New("canary-error")
		})
	}
	if text := out.String(); strings.Contains(text, "canary") || strings.Count(text, "\n") != next || next != 6 {
		t.Errorf("%d events: %s", next, text)
	}
}

func TestWithoutALoggerTheDefaultIsUsed(t *testing.T) {
	var out bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(old)
	stetlog.New(stetlog.Options{}).Observe(t.Context(), observe.Event{Kind: observe.MarkedUnknown})
	if !strings.Contains(out.String(), `level=WARN msg="stet: marked_unknown"`) {
		t.Errorf("%q", out.String())
	}
}
