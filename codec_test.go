package stet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/seal"
	"github.com/stet-go/stet/store"
)

func sample() Outcome {
	return Outcome{
		Adapter: store.AdapterHTTP, Reason: store.ReasonResolved, Status: 201, Type: "text/plain",
		Header:  []store.Field{{Name: "Vary", Values: []string{"a, b", "c"}}, {Name: "X-None", Values: []string{}}},
		Trailer: []store.Field{{Name: "Trailer:X", Values: []string{"1"}}},
		Trace:   "00-1-1-01",
		Body:    []byte("hello"),
	}
}

// oddly has a media type that no column of text can hold.
func oddly() Outcome {
	o := sample()
	o.Type = "text/plain; x=\xff"
	return o
}

// What follows the checksum in the heads of sample and oddly.
const (
	goldenFields = "02" + "04566172" + "7902" + "04612c2062" + "0163" + "06582d4e6f6e6500" + "0109547261696c65723a58010131" + "0930302d312d312d3031"
	goldenHead   = "01" + "13c75f06" + "0105" + "00" + goldenFields
	goldenOddly  = "01" + "b280a342" + "0105" + "0f746578742f706c61696e3b20783dff" + goldenFields
	goldenSealed = "02016b2dfc4be964ef9764c416c1e8abcc38dc1d0e02870d672f29c9d0224f61f63823e87fd8f0338c4740eabc00bddbb5f60e22ad10595a608fe12d1f76024c3eaad6863273f7da11dada9efb079420e06b0c3b91ef20691d789fb7598ae0967ee8117ad06c7fc7"
	goldenID     = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
)

func goldenSealer(t testing.TB) *sealer {
	t.Helper()
	s, err := newSealer(Encryption{Keys: []EncryptionKey{{Name: "k", Secret: bytes.Repeat([]byte{7}, 32)}}})
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// TestStoredOutcomesKeepTheirForm holds the codec to bytes that were written once: a
// newer version must read them.
func TestStoredOutcomesKeepTheirForm(t *testing.T) {
	id, err := store.ParseID(goldenID)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s    *sealer
		o    Outcome
		head string
		is   store.Result // but for its head
	}{
		"plain":       {&sealer{acceptPlain: true}, sample(), goldenHead, store.Result{Status: 201, Type: "text/plain", Body: []byte("hello")}},
		"an odd type": {&sealer{acceptPlain: true}, oddly(), goldenOddly, store.Result{Status: 201, Body: []byte("hello")}},
		"encrypted":   {goldenSealer(t), sample(), goldenSealed, store.Result{}},
	} {
		got := c.s.sealed(id, c.o)
		if head := hex.EncodeToString(got.Head); head != c.head {
			t.Errorf("%s: the head is\n%s; want\n%s", name, head, c.head)
		}
		c.is.Head, _ = hex.DecodeString(c.head)
		if !got.Equal(c.is) {
			t.Errorf("%s: it is stored as %+v; want %+v", name, got, c.is)
		}
		if got, err := c.s.open(store.Record{ID: id, State: store.Completed, Result: c.is}); err != nil || !reflect.DeepEqual(got, c.o) {
			t.Errorf("%s: it is read as %+v, %v; want %+v", name, got, err, c.o)
		}
	}
}

func TestOutcomeSurvivesTheCodec(t *testing.T) {
	var empty Outcome
	for _, want := range []Outcome{sample(), oddly(), {Body: []byte{}}, {Type: strings.Repeat("x", 300), Adapter: store.AdapterGo, Body: []byte("x")}} {
		r := want.encode()
		if cap(r.Head) != len(r.Head) || r.Size() > want.size()+empty.encode().Size()-empty.size()+headSlack {
			t.Errorf("the head has %d bytes of %d; all have %d, and %d by Size", len(r.Head), cap(r.Head), r.Size(), want.size())
		}
		got, err := decodeStored(r)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
}

// A changed byte in any part of a stored result is an error.
func TestDamageInEveryPartIsFound(t *testing.T) {
	for name, s := range map[string]*sealer{"plain": {acceptPlain: true}, "encrypted": goldenSealer(t)} {
		rec := store.Record{State: store.Completed, Result: s.sealed(store.ID{}, sample())}
		if _, err := s.open(rec); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		refused := func(what string, r store.Result) {
			t.Helper()
			hurt := rec
			hurt.Result = r
			if o, err := s.open(hurt); !errors.Is(err, seal.ErrDamaged) && !errors.Is(err, errCodec) {
				t.Errorf("%s, %s: it is read as %+v, %v", name, what, o, err)
			}
		}
		for bit := range 10 {
			r := rec.Result
			r.Status ^= 1 << bit
			refused("another status", r)
		}
		for _, media := range []string{"text/plaim", "", "text/plain ", "text/plain\x00", "x"} {
			if r := rec.Result; r.Type != media {
				r.Type = media
				refused("the type "+media, r)
			}
		}
		for at := range rec.Result.Head {
			for bit := range 8 {
				r := rec.Result
				r.Head = bytes.Clone(r.Head)
				r.Head[at] ^= 1 << bit
				refused("another head", r)
			}
			if r := rec.Result; at > 0 { // one without bytes is what SQL writes
				r.Head = r.Head[:at]
				refused("a shorter head", r)
			}
		}
		for at := range rec.Result.Body {
			r := rec.Result
			r.Body = bytes.Clone(r.Body)
			r.Body[at] ^= 1
			refused("another body", r)
			r.Body = r.Body[:at]
			refused("a shorter body", r)
		}
		r := rec.Result
		r.Body = append(bytes.Clone(r.Body), 0)
		refused("a longer body", r)
	}
}

// A result that SQL wrote has no head. It is accepted unless results must be encrypted.
func TestResultWithoutAHeadIsReadAsItStands(t *testing.T) {
	rec := store.Record{State: store.Failed, Result: store.Result{Status: 402, Type: "application/json", Body: []byte(`"no"`)}}
	plain := &sealer{acceptPlain: true}
	want := Outcome{Failed: true, Adapter: store.AdapterSQL, Status: 402, Type: "application/json", Body: []byte(`"no"`)}
	if got, err := plain.open(rec); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("it is read as %+v, %v; want %+v", got, err, want)
	}
	if got, err := plain.open(store.Record{State: store.Completed}); err != nil || !reflect.DeepEqual(got, Outcome{Adapter: store.AdapterSQL}) {
		t.Errorf("an empty result is read as %+v, %v", got, err)
	}
	if _, err := goldenSealer(t).open(rec); !errors.Is(err, seal.ErrDamaged) {
		t.Errorf("with encryption: %v", err)
	}
	for _, status := range []int{-1, 1000} {
		rec.Result.Status = status
		if _, err := plain.open(rec); !errors.Is(err, errCodec) {
			t.Errorf("with the status %d: %v", status, err)
		}
	}
}

// SQL has no checksum: its header fields are JSON. The bytes are what stet_settle writes.
func TestHeaderFieldsThatSQLHasWrittenAreRead(t *testing.T) {
	head := func(text string) store.Result {
		return store.Result{Status: 201, Head: append([]byte{sqlHead}, text...)}
	}
	want := []store.Field{{Name: "Link", Values: []string{"</a>", "</b>"}}, {Name: "Location", Values: []string{"/payments/7"}}}
	got, err := decodeStored(head(`{"Location": ["/payments/7"], "Link": ["</a>", "</b>"]}`))
	if err != nil || got.Adapter != store.AdapterSQL || got.Status != 201 || !reflect.DeepEqual(got.Header, want) {
		t.Errorf("it is read as %+v, %v; want the adapter sql, 201 and %v", got, err, want)
	}
	for _, text := range []string{"", "[]", `{"Location": "/payments/7"}`, `{"": ["x"]}`, `{"A": [1]}`, `{"A": ["` + strings.Repeat(`x","`, store.MaxFields) + `"]}`} {
		if got, err := decodeStored(head(text)); !errors.Is(err, errCodec) {
			t.Errorf("%.40s: %+v, %v; want an error", text, got, err)
		}
	}
}

// HTTP libraries of other languages have a character of Latin-1 for each byte of a header
// value. A Go service sends the bytes that they have had.
func TestHeaderValuesOfSQLHaveACharacterForEachByte(t *testing.T) {
	for text, want := range map[string]string{
		`caf\u00e9`:           "caf\xe9",   // sent as Latin-1
		`cafÃ©`:               "café",      // sent as UTF-8, which Starlette and Node read so
		`\u0000\u00ff`:        "\x00\xff",  // which is for the adapter to refuse
		`\u20ac 5, caf\u00e9`: "€ 5, café", // cannot be of Latin-1
	} {
		got, err := decodeStored(store.Result{Status: 200, Head: append([]byte{sqlHead}, `{"A": ["`+text+`"]}`...)})
		if err != nil || len(got.Header) != 1 || got.Header[0].Values[0] != want {
			t.Errorf("%s is read as %q, %v; want %q", text, got.Header, err, want)
		}
	}
}

// summed gives r the checksum that it should have.
func summed(r store.Result) store.Result {
	r.Head = append([]byte{plainHead, 0, 0, 0, 0}, r.Head...)
	binary.BigEndian.PutUint32(r.Head[1:], sumOf(&r))
	return r
}

func TestCodecRefusesUnknownTypes(t *testing.T) {
	good := sample()
	r := good.encode()
	rest := r.Head[headStart:]
	of := func(head ...byte) store.Result { return summed(store.Result{Status: 200, Head: head}) }
	fields := func(fields ...store.Field) store.Result { return (&Outcome{Header: fields}).encode() }
	newer := summed(store.Result{})
	newer.Head[0]++
	for name, r := range map[string]store.Result{
		"a newer version":         newer,
		"a later adapter":         of(byte(store.AdapterSQL)+1, 0, 0, 0, 0, 0),
		"a reason of later":       of(0, byte(store.ReasonNoEffect)+1, 0, 0, 0, 0),
		"status 1000":             (&Outcome{Status: 1000}).encode(),
		"names out of order":      fields(store.Field{Name: "B"}, store.Field{Name: "A"}),
		"a name twice":            fields(store.Field{Name: "A"}, store.Field{Name: "A"}),
		"a field without a name":  fields(store.Field{}),
		"a number in a long form": of(0, 0, 0x80, 0x00, 0, 0, 0),
		"too many fields":         of(binary.AppendUvarint([]byte{0, 0, 0}, store.MaxFields+1)...),
		"a huge number":           of(binary.AppendUvarint([]byte{0, 0, 0}, 1<<63)...),
		"a string past the end":   of(0, 0, 0, 1, 200, 1, 'a', 0, 0, 0),
		"a type that fits inside": of(0, 0, 1, 'a', 0, 0, 0),
		"two types":               summed(store.Result{Type: "text/plain", Head: []byte{0, 0, 1, 0xff, 0, 0, 0}}),
		"an odd type outside":     summed(store.Result{Type: "\xff", Head: []byte{0, 0, 0, 0, 0, 0}}),
		"something after it":      of(0, 0, 0, 0, 0, 0, 0),
	} {
		if o, err := decodeStored(r); !errors.Is(err, errCodec) {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
	for n := range rest {
		if _, err := decodeStored(of(rest[:n]...)); !errors.Is(err, errCodec) {
			t.Errorf("the first %d of %d bytes: %v", n, len(rest), err)
		}
	}
	if _, err := decodeStored(of(0, 0, 0, 0, 0, 0)); err != nil {
		t.Errorf("nothing in it: %v", err)
	}
}

func FuzzCodec(f *testing.F) {
	o := sample()
	f.Add(201, "text/plain", o.encode().Head[headStart:], []byte("hello"))
	f.Add(204, "", []byte{0, 0, 0, 0, 0, 0}, []byte{})
	f.Add(0, "\xff", []byte{0, 0, 1, 0xff, 0, 0, 0}, []byte{})
	f.Add(0, "", []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, status int, media string, head, body []byte) {
		if status < 0 {
			return
		}
		r := summed(store.Result{Status: status, Type: media, Head: head, Body: body})
		o, err := decodeStored(r)
		if err != nil {
			if !errors.Is(err, errCodec) {
				t.Fatal(err)
			}
			return
		}
		if o.unstorable() != nil {
			t.Fatalf("decoded what could not have been stored: %+v", o)
		}
		if again := o.encode(); !again.Equal(r) {
			t.Fatalf("%+v decodes to %+v, which encodes to %+v", r, o, again)
		}
	})
}
