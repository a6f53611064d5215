package store_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/stet-go/stet/store"
)

// TestPackedResultsKeepTheirForm holds Marshal to bytes that were written once: stores
// have them.
func TestPackedResultsKeepTheirForm(t *testing.T) {
	for packed, want := range map[string]store.Result{
		"":                                   {},
		"c901046a736f6e02" + "0102" + "6869": {Status: 201, Type: "json", Head: []byte{1, 2}, Body: []byte("hi")},
		"00000068":                           {Body: []byte("h")},
		"00000107":                           {Head: []byte{7}},
		"e70700" + "00":                      {Status: 999},
	} {
		got := want.Marshal()
		if hex.EncodeToString(got) != packed || len(got) != want.Size() || cap(got) != len(got) {
			t.Errorf("%+v is packed as %x in %d bytes, Size %d; want %s", want, got, cap(got), want.Size(), packed)
		}
		b, err := hex.DecodeString(packed)
		if err != nil {
			t.Fatal(err)
		}
		var r store.Result
		if err := r.Unmarshal(b); err != nil || !r.Equal(want) {
			t.Errorf("%s is unpacked as %+v, %v; want %+v", packed, r, err, want)
		}
	}
	for _, length := range []int{127, 128, 1 << 14, 1 << 20} {
		want := store.Result{Type: string(bytes.Repeat([]byte("x"), length)), Head: make([]byte, length), Body: []byte("x")}
		var r store.Result
		if b := want.Marshal(); len(b) != want.Size() || r.Unmarshal(b) != nil || !r.Equal(want) {
			t.Errorf("with parts of %d bytes it has %d, Size %d, and is unpacked with %d", length, len(b), want.Size(), r.Size())
		}
	}
}

func TestResultsDifferInEachPart(t *testing.T) {
	is := store.Result{Status: 200, Type: "a", Head: []byte{1}, Body: []byte("a")}
	for name, other := range map[string]store.Result{
		"status": {Status: 201, Type: "a", Head: []byte{1}, Body: []byte("a")}, "type": {Status: 200, Type: "b", Head: []byte{1}, Body: []byte("a")},
		"head": {Status: 200, Type: "a", Head: []byte{0}, Body: []byte("a")}, "no head": {Status: 200, Type: "a", Body: []byte("a")},
		"body": {Status: 200, Type: "a", Head: []byte{1}, Body: []byte("b")}, "nothing": {},
	} {
		if is.Equal(other) || other.Equal(is) {
			t.Errorf("with another %s they are the same", name)
		}
	}
	if !is.Equal(is) || !(store.Result{Body: []byte{}}).Equal(store.Result{}) || !(store.Result{Body: []byte{}}).IsZero() || !(store.Result{Head: []byte{}}).IsZero() || !(store.Result{Head: []byte{}}).Equal(store.Result{}) {
		t.Error("the same result is another, or a part without bytes is one")
	}
}

func FuzzResult(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{0xc8, 1, 1, 'a', 2, 1, 'b'})
	f.Add([]byte{0x80, 0, 0, 0, 1})
	f.Add([]byte{0, 200, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r store.Result
		if err := r.Unmarshal(b); err != nil {
			if !errors.Is(err, store.ErrDamaged) || !r.IsZero() {
				t.Fatalf("%x: %+v, %v", b, r, err)
			}
			return
		}
		if again := r.Marshal(); !bytes.Equal(again, b) {
			t.Fatalf("%x is unpacked as %+v, which is packed as %x", b, r, again)
		}
	})
}
