package engine_test

import (
	"context"
	"database/sql"
	"reflect"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// whySettled notes the errors of the events that tell of stored outcomes.
func whySettled(o *stet.Options) *[]string {
	var why []string
	o.Observer = observe.Func(func(_ context.Context, ev observe.Event) {
		if ev.Kind == observe.Settled || ev.Kind == observe.Resolved {
			text := ""
			if ev.Err != nil {
				text = ev.Err.Error()
			}
			why = append(why, text)
		}
	})
	return &why
}

func TestValuesOfANameThatIsThereTwiceAreMerged(t *testing.T) {
	var o stet.Options
	why := whySettled(&o)
	e := newEngine(t, memory.New(memory.Options{}), o)
	run := begin(t, e, op)
	twice := []store.Field{{Name: "X", Values: []string{"2", "1"}}, {Name: "A", Values: []string{"a"}}, {Name: "X", Values: []string{"0"}}}
	if err := run.Settle(t.Context(), stet.Outcome{Status: 200, Header: twice, Trailer: twice, Body: []byte("b")}); err != nil {
		t.Fatal(err)
	}
	want := []store.Field{{Name: "A", Values: []string{"a"}}, {Name: "X", Values: []string{"2", "1", "0"}}}
	replay, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	out := replay.Outcome()
	if out.Gone || !reflect.DeepEqual(out.Header, want) || !reflect.DeepEqual(out.Trailer, want) || string(out.Body) != "b" {
		t.Errorf("got %+v; want the fields %v", out, want)
	}
	if len(*why) != 1 || (*why)[0] != "" {
		t.Errorf("events: %q; want one without an error", *why)
	}
	if len(twice) != 3 || twice[0].Name != "X" || len(twice[0].Values) != 2 {
		t.Errorf("the caller's fields were changed: %v", twice)
	}
}

// TestOutcomeThatCannotBeKeptIsNeverLostInSilence: an event says why.
func TestOutcomeThatCannotBeKeptIsNeverLostInSilence(t *testing.T) {
	many := make([]string, store.MaxFields)
	for name, test := range map[string]struct {
		out  stet.Outcome
		want string
	}{
		"too large":       {stet.Outcome{Body: make([]byte, 2000)}, "Policy.MaxResult is 1000"},
		"too many values": {stet.Outcome{Header: []store.Field{{Name: "X", Values: many}}}, "4097 header and trailer fields"},
		"status":          {stet.Outcome{Status: 1000}, "status 1000"},
		"negative status": {stet.Outcome{Status: -1}, "status -1"},
		"no name":         {stet.Outcome{Trailer: []store.Field{{}}}, "has no name"},
		"adapter":         {stet.Outcome{Adapter: 99}, "adapter(99)"},
		"reason":          {stet.Outcome{Reason: 99}, "reason(99)"},
		"none to keep":    {stet.Outcome{Gone: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := stet.Options{Policy: stet.Policy{MaxResult: 1000}}
			why := whySettled(&o)
			st, _ := bank(t)
			e := newEngine(t, st, o)
			inTx := txOf(e, st)
			id := func(key string) stet.Op { return stet.Op{Scope: "s", Key: key} }
			if err := begin(t, e, id("lease")).Settle(t.Context(), test.out); err != nil {
				t.Error(err)
			}
			if _, err := inTx.Run(t.Context(), id("tx"), func(context.Context, *sql.Tx) (stet.Outcome, error) { return test.out, nil }); err != nil {
				t.Error(err)
			}
			dead := begin(t, e, id("resolved"))
			if err := dead.MarkUnknown(t.Context()); err != nil {
				t.Error(err)
			}
			if err := e.Resolve(t.Context(), shown(dead), "", stet.ItHappened(test.out)); err != nil {
				t.Error(err)
			}
			if len(*why) != 3 {
				t.Errorf("%d events; want 3", len(*why))
			}
			for i, got := range *why {
				if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
					t.Errorf("event %d says %q; want %q", i, got, test.want)
				}
			}
			for _, key := range []string{"lease", "tx", "resolved"} {
				if st, err := e.Status(t.Context(), "s", e.ID("s", key)); err != nil || !st.Outcome.Gone {
					t.Errorf("%s: %+v, %v; want an outcome without its result", key, st.Outcome, err)
				}
			}
		})
	}
}
