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
	"github.com/stet-go/stet/stetlog"
	"github.com/stet-go/stet/store/memory"
)

// lines are what the observer logs of the events, from a level on.
func lines(t *testing.T, from slog.Level, events ...stet.Event) (all []map[string]any) {
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

func TestWhatSomebodyShouldLookAtIsAWarningOrAnError(t *testing.T) {
	failed := errors.New("disk full")
	for _, c := range []struct {
		kind stet.EventKind
		err  error
		want string
	}{
		{stet.EventParked, nil, "WARN"}, {stet.EventLeaseLost, failed, "WARN"}, {stet.EventFenced, failed, "WARN"},
		{stet.EventTakenOver, nil, "WARN"}, {stet.EventStoreFailed, failed, "ERROR"}, {stet.EventFailedOpen, failed, "ERROR"},
		{stet.EventReplayed, failed, "ERROR"}, {stet.EventResolved, failed, "WARN"}, {stet.EventSwept, failed, "WARN"},
		{stet.EventInFlight, failed, "DEBUG"}, {stet.EventReplayed, nil, "DEBUG"}, {stet.EventResolved, nil, "DEBUG"},
		{stet.EventClaimed, nil, "DEBUG"}, {stet.EventMismatched, nil, "DEBUG"}, {stet.EventExpired, nil, "DEBUG"},
		{stet.EventToldUnknown, nil, "DEBUG"}, {stet.EventSettled, nil, "DEBUG"}, {stet.EventReleased, nil, "DEBUG"}, {stet.EventSwept, nil, "DEBUG"},
	} {
		got := lines(t, slog.LevelDebug, stet.Event{Kind: c.kind, ID: stet.Digest("", "s", "k"), Err: c.err})
		if len(got) != 1 || got[0]["level"] != c.want || got[0]["msg"] != "stet: "+c.kind.String() || (got[0]["error"] != nil) != (c.err != nil) {
			t.Errorf("%v with %v: %v, want %s", c.kind, c.err, got, c.want)
		}
	}
}

func TestLineHasWhatTheEventHasAndNothingElse(t *testing.T) {
	id := stet.Digest("", "s", "k")
	got := lines(t, slog.LevelDebug, stet.Event{Kind: stet.EventSettled, ID: id, Class: "payments", State: stet.Completed, Fence: 7, Attempt: 2, Elapsed: time.Second},
		stet.Event{Kind: stet.EventSwept, Swept: stet.Swept{Parked: 1, Expired: 2, Purged: 3}})
	for i, want := range []string{
		`{"attempt":2,"class":"payments","elapsed":1000000000,"fence":7,"id":"` + id.String()[16:28] + `","state":"completed"}`,
		`{"expired":2,"parked":1,"purged":3}`,
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
func TestShortenedIDsTellTheKeysOfAScopeApart(t *testing.T) {
	a, b := stet.Digest("", "s", "a"), stet.Digest("", "s", "b")
	got := lines(t, slog.LevelDebug, stet.Event{Kind: stet.EventClaimed, ID: a}, stet.Event{Kind: stet.EventClaimed, ID: b}, stet.Event{Kind: stet.EventParked, ID: a})
	if got[0]["id"] == got[1]["id"] || len(got[0]["id"].(string)) != 12 || got[2]["id"] != a.String() || !strings.Contains(a.String(), got[0]["id"].(string)) {
		t.Errorf("%v", got)
	}
}

func TestQuietLoggerCostsNothing(t *testing.T) {
	o := stetlog.New(stetlog.Options{Logger: slog.New(slog.DiscardHandler)})
	ev := stet.Event{Kind: stet.EventParked, ID: stet.Digest("", "s", "k")}
	if n := testing.AllocsPerRun(100, func() { o.Observe(context.Background(), ev) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNoKeyScopeOrResultIsLogged(t *testing.T) {
	var out bytes.Buffer
	next := 0
	o := stetlog.New(stetlog.Options{
		Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Next:   stet.ObserverFunc(func(context.Context, stet.Event) { next++ }),
	})
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Observer: o, SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	op := stet.Op{Scope: "canary-scope", Key: "canary-key"}
	for range 2 {
		_, _ = stet.Do(t.Context(), engine, op, func(context.Context) (string, error) { return "canary-result", nil })
	}
	op.Key = "canary-key-2"
	for range 2 {
		_, _ = stet.Do(t.Context(), engine, op, func(ctx context.Context) (string, error) {
			stet.FromContext(ctx).OutcomeUnknown(0)
			return "", errors.New("canary-error")
		})
	}
	if text := out.String(); strings.Contains(text, "canary") || strings.Count(text, "\n") != next || next != 6 {
		t.Errorf("%d events: %s", next, text)
	}
}

func TestWithoutALoggerTheDefaultOneIsAsked(t *testing.T) {
	var out bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(old)
	stetlog.New(stetlog.Options{}).Observe(t.Context(), stet.Event{Kind: stet.EventParked})
	if !strings.Contains(out.String(), `level=WARN msg="stet: parked"`) {
		t.Errorf("%q", out.String())
	}
}
