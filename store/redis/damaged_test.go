package redis

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stet-go/stet/store"
)

// TestDamagedRecordIsReadWithoutHarm: for any stored bytes, the record that comes of
// it is one, or there is an error. (No fuzz target: rueidis, in the same test
// binary, takes many minutes to compile for one.)
func TestDamagedRecordIsReadWithoutHarm(t *testing.T) {
	whole := string([]byte{newestVersion, byte(store.Completed), flagGone}) + strings.Repeat("\x01", recordSize-3)
	rapid.Check(t, func(t *rapid.T) {
		packed := []byte(whole)
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			packed[rapid.IntRange(0, len(packed)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		if rapid.IntRange(0, 9).Draw(t, "cut") == 0 {
			packed = packed[:rapid.IntRange(0, len(packed)).Draw(t, "size")]
		}
		now := rapid.Int64().Draw(t, "now")
		rec, err := decodeWhole(store.ID{1}, []any{now, string(packed), "result", "work", "notes"})
		if err == nil && (rec.State < store.Running || rec.State > store.Accepted || rec.Attempt < 0) {
			t.Errorf("%+v", rec)
		}
		if err == nil && len(packed) != recordSize {
			t.Errorf("%d bytes are a record", len(packed))
		}
	})
}

// TestForgedCursorIsRefused: a cursor comes back from clients. Only a cursor that the store
// returned is accepted.
func TestForgedCursorIsRefused(t *testing.T) {
	q := store.Query{States: []store.State{store.Unknown}}
	rapid.Check(t, func(t *rapid.T) {
		p := place{part: rapid.IntRange(0, 2000).Draw(t, "part"), inside: rapid.Bool().Draw(t, "inside"), span: span{bounded: rapid.Bool().Draw(t, "bounded")}}
		if p.inside {
			copy(p.after[:], rapid.SliceOfN(rapid.Byte(), len(p.after), len(p.after)).Draw(t, "after"))
		}
		cursor := []byte(p.String(q))
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			cursor[rapid.IntRange(0, len(cursor)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		q := q
		q.After = string(cursor)
		if again, err := parsePlace(q); err == nil && again.String(q) != q.After {
			t.Errorf("%q became %q", q.After, again.String(q))
		}
	})
}
