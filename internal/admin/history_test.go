package admin_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestHistoryIsShownEverywhere(t *testing.T) {
	local, remote, engine := both(t) // k was abandoned
	_, err := stet.Do(t.Context(), engine, stet.Op{Scope: "acme", Key: "r"}, func(ctx context.Context) (int, error) {
		stet.FromContext(ctx).Explain(observe.Why{Status: 503})
		return 0, stet.Retryable(errors.New("busy\x1b[2J"))
	})
	if stet.KindOf(err) != stet.KindRetryable {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil { // all entries are written
		t.Fatal(err)
	}
	for key, want := range map[string][]string{
		"k": {"lease_expired", "process_gone", "process "}, "r": {"released", "declared", "status 503", "busy [2J"},
	} {
		l, errL := local.Get(t.Context(), engine.ID("acme", key), false)
		r, errR := remote.Get(t.Context(), engine.ID("acme", key), false)
		if errL != nil || errR != nil || !reflect.DeepEqual(l, r) || len(l.Entries) != 1 {
			t.Fatalf("%s: %+v, %v, and here %+v, %v", key, r, errR, l, errL)
		}
		line := admin.HistoryLine(l.Entries[0])
		for _, part := range want {
			if !strings.Contains(line, part) {
				t.Errorf("%s: the line is %q; it has no %q", key, line, part)
			}
		}
		if l.LastReason != want[1] || !strings.HasSuffix(l.Note(), l.LastReason+")") && l.Note() != l.LastReason {
			t.Errorf("%s: the last reason is %q, the note %q", key, l.LastReason, l.Note())
		}
	}
	page, err := remote.List(t.Context(), admin.Query{States: []store.State{store.Unknown, store.Retryable, store.Completed}})
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for _, rec := range page.Records {
		reasons[rec.State] = rec.LastReason
		if len(rec.Entries) > 0 {
			t.Errorf("a list has whole histories: %+v", rec)
		}
	}
	if want := map[string]string{"unknown": "process_gone", "retryable": "declared", "completed": ""}; !reflect.DeepEqual(reasons, want) {
		t.Errorf("the reasons of the list are %v; want %v", reasons, want)
	}
}

func TestResolutionAndItsReasonAreInTheHistory(t *testing.T) {
	local, _, engine := both(t)
	id := engine.ID("acme", "k")
	rec, err := local.Get(t.Context(), id, false)
	if err != nil {
		t.Fatal(err)
	}
	e, err := local.Change(t.Context(), id, admin.Change{Action: admin.Release, Fence: rec.Fence, Reason: "case 7", Actor: "mia"})
	if err != nil || e.From.Reason != "process_gone" {
		t.Fatalf("%+v, %v; the audit must have the last reason", e, err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	rec, err = local.Get(t.Context(), id, false)
	if err != nil || len(rec.Entries) != 1 || rec.Entries[0].By != "mia" || !strings.HasPrefix(rec.Entries[0].Text, "case 7 (") || rec.LastReason != "operator" {
		t.Errorf("%+v, %v", rec, err)
	}
}

// plain is a store without histories.
type plain struct{ store.Store }

func TestStoreWithoutHistories_IsReported(t *testing.T) {
	engine, err := stet.New(plain{memory.New(memory.Options{})}, stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	if _, err := stet.Do(t.Context(), engine, stet.Op{Scope: "acme", Key: "k"}, func(context.Context) (int, error) { return 1, nil }); err != nil {
		t.Fatal(err)
	}
	local := &admin.Local{Engine: engine, HTTP: responses}
	if rec, err := local.Get(t.Context(), engine.ID("acme", "k"), false); err != nil || !rec.NoHistory {
		t.Errorf("%+v, %v; want no_history", rec, err)
	}
}
