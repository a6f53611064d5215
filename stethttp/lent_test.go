package stethttp

import (
	"bytes"
	"fmt"
	"testing"
)

// In all tests of this package memory is overwritten before it is lent again. What still
// reads it then finds this, and the race detector finds the reader.
func init() {
	void := bytes.Repeat([]byte{0xdb}, maxPooled)
	freed = func(b []byte) {
		for b = b[:cap(b)]; len(b) > 0; {
			b = b[copy(b, void):]
		}
	}
}

func TestBuffersKeepWhatTheyHoldAsTheyGrow(t *testing.T) {
	for _, step := range []int{1, 1000, 5 << 10, 40 << 10, 64 << 10, 70 << 10, 300 << 10, 2 << 20} {
		t.Run(fmt.Sprint(step), func(t *testing.T) {
			buf, want := newBuffer(), []byte(nil)
			defer buf.free()
			for i := 0; len(want) < 3<<20 && i < 4000; i++ {
				piece := bytes.Repeat([]byte{byte(i)}, step)
				buf.grow(len(piece))
				if room := cap(buf.b) - len(buf.b); room < len(piece) {
					t.Fatalf("there is room for %d bytes after grow(%d)", room, len(piece))
				}
				buf.b, want = append(buf.b, piece...), append(want, piece...)
			}
			if !bytes.Equal(buf.b, want) {
				t.Error("it holds something else than was written")
			}
		})
	}
}

// A buffer that goes back has little memory, whatever it has held: thousands of them may
// be kept.
func TestBuffersGiveLargeMemoryBack(t *testing.T) {
	for _, size := range []int{10, 3000, 64 << 10, 64<<10 + 1, 256 << 10, 1 << 20, 5 << 20} {
		buf := newBuffer()
		buf.grow(size)
		buf.b = append(buf.b, make([]byte, size)...)
		if buf.drop(); cap(buf.b) > maxPooled || len(buf.b) > 0 || buf.small != nil {
			t.Errorf("after %d bytes it has %d bytes, and memory for %d", size, len(buf.b), cap(buf.b))
		}
	}
}
