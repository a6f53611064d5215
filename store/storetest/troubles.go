package storetest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

var troubleChecks = []check{
	{"a history has the first troubles and the last ones", "the first entry has the cause, the last one the latest attempt to resolve it.",
		historyIsBounded},
	{"a history ends with its record, and has nothing of an earlier use of the key", "an operator would act on the trouble of another operation.",
		historyEndsWithItsRecord},
	{"the histories of many records are read together, the newest entries of each", "a list shows the last reason of each operation.",
		historiesOfMany},
	{"a history changes no record", "it is written while others write the outcome.",
		historyChangesNoRecord},
}

// addHistory adds an entry about a record.
func (f *fixture) addHistory(rec store.Record, data string) {
	f.Helper()
	if err := f.can.history.AddHistory(f.ctx, rec.ID, store.HistoryEntry{Fence: rec.Fence, Attempt: rec.Attempt, Data: []byte(data)}); err != nil {
		f.Fatalf("AddHistory: %v", err)
	}
}

// histories returns the last entries of the records.
func (f *fixture) histories(most int, recs ...store.Record) [][]store.HistoryEntry {
	f.Helper()
	var ids []store.ID
	for _, rec := range recs {
		ids = append(ids, rec.ID)
	}
	all, err := f.can.history.History(f.ctx, ids, most)
	if err != nil || len(all) != len(recs) {
		f.Fatalf("History of %d records: %d lists, %v", len(recs), len(all), err)
	}
	return all
}

// data joins the data of entries.
func data(list []store.HistoryEntry) string {
	var all []string
	for _, e := range list {
		all = append(all, string(e.Data))
	}
	return strings.Join(all, " ")
}

func historyIsBounded(f *fixture) {
	rec := f.grant(f.request(f.long))
	large := strings.Repeat("\x00\xff", store.MaxHistoryEntry/2)
	f.addHistory(rec, large)
	if got := f.histories(store.MaxHistory, rec)[0]; len(got) != 1 || !bytes.Equal(got[0].Data, []byte(large)) {
		f.Fatalf("of an entry of %d bytes %d entries remain, or not all bytes", len(large), len(got))
	}
	want := []string{large}
	for i := range 2 * store.MaxHistory {
		f.addHistory(rec, fmt.Sprint(i))
		if want = append(want, fmt.Sprint(i)); len(want) > store.MaxHistory {
			want = append(want[:store.HistoryStart:store.HistoryStart], want[store.HistoryStart+1:]...)
		}
	}
	got := f.histories(store.MaxHistory, rec)[0]
	if data(got) != strings.Join(want, " ") {
		f.Errorf("after %d entries the history is %.90q; want %.90q", 1+2*store.MaxHistory, data(got[1:]), want[1:])
	}
	for i, e := range got {
		if e.Fence != rec.Fence || e.Attempt != rec.Attempt || e.At.Before(rec.ClaimedAt.Add(-time.Second)) || i > 0 && e.At.Before(got[i-1].At) {
			f.Errorf("entry %d is of fence %d, attempt %d, at %v; want %d, %d, not before %v", i, e.Fence, e.Attempt, e.At, rec.Fence, rec.Attempt, rec.ClaimedAt)
		}
	}
}

func historyEndsWithItsRecord(f *fixture) {
	forget := store.Retention{Result: f.unit / 2, Tombstone: f.unit}
	req, again := f.request(f.long), f.request(f.long)
	rec, first := f.grant(req), f.grant(again)
	f.addHistory(rec, "one")
	f.addHistory(first, "old")
	f.settle(rec.Claim(), completed("x"), forget)
	f.settle(first.Claim(), completed("x"), forget)
	f.pass(1)
	second := f.grant(byAnother(again))
	if got := store.HistoryOf(second, f.histories(store.MaxHistory, second)[0]); len(got) > 0 {
		f.Errorf("the history of a key that was claimed again, after its record was forgotten, is %q", data(got))
	}
	f.addHistory(second, "new")
	if got := data(f.histories(store.MaxHistory, second)[0]); got != "new" {
		f.Errorf("after an entry of the new record, the history is %q; want %q", got, "new")
	}
	f.release(second.Claim(), f.keep)
	third := f.grant(byAnother(again))
	f.addHistory(third, "retried")
	if got := data(store.HistoryOf(third, f.histories(store.MaxHistory, third)[0])); got != "new retried" {
		f.Errorf("after a second attempt, the history is %q; want %q", got, "new retried")
	}
	if f.can.sweeper != nil {
		f.sweepAll(f.can.sweeper)
	}
	f.addHistory(rec, "late")
	if got := f.histories(store.MaxHistory, rec)[0]; len(got) > 0 {
		f.Errorf("the history of a record that was deleted is %q", data(got))
	}
}

func historiesOfMany(f *fixture) {
	one, none, two := f.grant(f.request(f.long)), f.grant(f.request(f.long)), f.grant(f.request(f.long))
	f.addHistory(one, "a")
	for _, text := range []string{"b", "c", "d"} {
		f.addHistory(two, text)
	}
	got := f.histories(2, two, none, one)
	if data(got[0]) != "c d" || len(got[1]) != 0 || data(got[2]) != "a" {
		f.Errorf("the last two entries of three records are %q, %q and %q; want \"c d\", none and \"a\"", data(got[0]), data(got[1]), data(got[2]))
	}
	if got := f.histories(1); len(got) != 0 {
		f.Errorf("of no records there are %d histories", len(got))
	}
}

func historyChangesNoRecord(f *fixture) {
	for _, s := range f.situations() {
		if s.state == store.None {
			continue
		}
		f.addHistory(s.rec, "trouble")
		f.unchanged("AddHistory to a key that is "+s.name, s.rec)
	}
}
