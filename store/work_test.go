package store_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stet-go/stet/store"
)

// Stores that keep notes packed may compare them as bytes.
func TestPackedNotesComeBackAndAreOrderedByTheirVersion(t *testing.T) {
	var last []byte
	for _, version := range []uint64{1, 2, 255, 256, 1<<48 - 1, 1 << 48, 1<<63 - 1, 1 << 63, math.MaxUint64} {
		for _, data := range []string{"", "a", "\x00\xff"} {
			b := store.Notes{Version: version, Data: []byte(data)}.Marshal()
			if got := store.UnmarshalNotes(b); got.Version != version || string(got.Data) != data {
				t.Errorf("version %d with %q came back as version %d with %q", version, data, got.Version, got.Data)
			}
			if bytes.Compare(b[:8], last) < 0 {
				t.Errorf("version %d is not greater, as bytes compare, than the one before", version)
			}
			last = b[:8]
		}
	}
	if b := (store.Notes{}).Marshal(); b != nil {
		t.Errorf("no notes are packed as %q; want nil", b)
	}
}

func TestUnpackedCheckpointsHaveNoVersion(t *testing.T) {
	for _, b := range []string{"", "x", "1234567"} {
		if got := store.UnmarshalNotes([]byte(b)); got.Version != 0 || string(got.Data) != b {
			t.Errorf("%q is read as version %d with %q; want it all as data of version 0", b, got.Version, got.Data)
		}
	}
}
