package stet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"github.com/stet-go/stet/store"
)

func sample() Outcome {
	return Outcome{
		Face: store.FaceHTTP, Reason: store.ReasonResolved, Status: 201, Type: "text/plain",
		Header:  []store.Field{{Name: "Vary", Values: []string{"a, b", "c"}}, {Name: "X-None", Values: []string{}}},
		Trailer: []store.Field{{Name: "Trailer:X", Values: []string{"1"}}},
		Trace:   "00-1-1-01",
		Body:    []byte("hello"),
	}
}

// TestStoredOutcomesKeepTheirForm holds the codec to bytes that were written once: a
// newer version must read them.
func TestStoredOutcomesKeepTheirForm(t *testing.T) {
	const golden = "010105c9010a746578742f706c61696e02045661727902" + "04612c2062" + "0163" + "06582d4e6f6e6500" +
		"0109547261696c65723a58010131" + "0930302d312d312d3031" + "68656c6c6f"
	want := sample()
	if got := hex.EncodeToString(want.encode()); got != golden {
		t.Errorf("encoded as\n%s; want\n%s", got, golden)
	}
	b, _ := hex.DecodeString(golden)
	if got, err := decodeStored(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestOutcomeSurvivesTheCodec(t *testing.T) {
	want := sample()
	b := want.encode()
	if len(b) != want.Size() || cap(b) != len(b) {
		t.Errorf("len %d, cap %d, size %d", len(b), cap(b), want.Size())
	}
	got, err := decodeStored(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestCodecRefusesWhatItDoesNotKnow(t *testing.T) {
	good := sample()
	b := good.encode()
	for n := range len(b) - len(good.Body) { // the body goes up to the end, which the sealer guards
		if _, err := decodeStored(b[:n]); !errors.Is(err, errCodec) {
			t.Errorf("the first %d of %d bytes: %v", n, len(b), err)
		}
	}
	newer := bytes.Clone(b)
	newer[0]++
	of := func(fields ...store.Field) []byte { return (&Outcome{Header: fields}).encode() }
	for name, b := range map[string][]byte{
		"a newer version":         newer,
		"version 0":               append([]byte{0}, b[1:]...),
		"a face of later":         {1, byte(store.FaceSQL) + 1, 0, 0, 0, 0, 0, 0},
		"a reason of later":       {1, 0, byte(store.ReasonResolved) + 1, 0, 0, 0, 0, 0},
		"status 1000":             (&Outcome{Status: 1000}).encode(),
		"names out of order":      of(store.Field{Name: "B"}, store.Field{Name: "A"}),
		"a name twice":            of(store.Field{Name: "A"}, store.Field{Name: "A"}),
		"a field without a name":  of(store.Field{}),
		"a number in a long form": {1, 0, 0, 0xc9, 0x81, 0x00, 0, 0, 0, 0},
		"too many fields":         binary.AppendUvarint([]byte{1, 0, 0, 0xc8, 1, 0}, store.MaxFields+1),
		"a huge number":           binary.AppendUvarint([]byte{1, 0, 0, 0xc8, 1, 0}, 1<<63),
		"a string past the end":   {1, 0, 0, 0xc8, 1, 0, 1, 200, 1, 'a', 0, 0, 0},
	} {
		if o, err := decodeStored(b); !errors.Is(err, errCodec) {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
}

func FuzzCodec(f *testing.F) {
	o := sample()
	f.Add(o.encode())
	f.Add((&Outcome{Status: 204}).encode())
	f.Add([]byte{})
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := decodeStored(b)
		if err != nil {
			if !errors.Is(err, errCodec) {
				t.Fatal(err)
			}
			return
		}
		if o.unstorable() != nil {
			t.Fatalf("decoded what could not have been stored: %+v", o)
		}
		if again := o.encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, o, again)
		}
	})
}
