package seal

import (
	"bytes"
	"errors"
	"testing"
)

func TestOpenReturnsTheSealedText(t *testing.T) {
	for _, content := range [][]byte{nil, {0}, []byte("result"), bytes.Repeat([]byte{0xff}, 1<<20)} {
		got, err := Open(Seal(content))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %v", len(content), err)
		}
	}
}

func TestEverySingleDamagedByteIsFound(t *testing.T) {
	sealed := Seal([]byte("HTTP/1.1 201 Created"))
	for i := range sealed {
		for bit := range 8 {
			b := bytes.Clone(sealed)
			b[i] ^= 1 << bit
			if _, err := Open(b); err == nil {
				t.Errorf("bit %d of byte %d", bit, i)
			}
		}
	}
	for n := range sealed {
		if _, err := Open(sealed[:n]); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

func TestNewerVersionIsRefused(t *testing.T) {
	b := Seal([]byte("x"))
	b[0] = Version + 1
	if _, err := Open(b); !errors.Is(err, ErrVersion) {
		t.Fatal(err)
	}
}

// TestFormatIsFrozen keeps records that are stored today readable tomorrow.
func TestFormatIsFrozen(t *testing.T) {
	stored := []byte("\x01\x29\x4d\xd7\x13stet")
	got, err := Open(stored)
	if err != nil || string(got) != "stet" || !bytes.Equal(Seal([]byte("stet")), stored) {
		t.Fatalf("%q, %v; Seal gives %q", got, err, Seal([]byte("stet")))
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(Seal(nil))
	f.Add(Seal([]byte("result")))
	f.Add([]byte{2, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		content, err := Open(b)
		if err != nil {
			return
		}
		if !bytes.Equal(Seal(content), b) {
			t.Fatalf("%q was accepted, but Seal gives %q", b, Seal(content))
		}
	})
}
