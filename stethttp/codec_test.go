package stethttp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"testing"

	"github.com/stet-go/stet"
)

func sample() stored {
	return stored{
		status:  201,
		header:  []field{{"Content-Type", []string{"text/plain"}}, {"Vary", []string{"a, b", "c"}}, {"X-None", []string{}}},
		trailer: []field{{"Trailer:X", []string{"1"}}},
		body:    []byte("hello"),
	}
}

func TestStoredResponseSurvivesTheCodec(t *testing.T) {
	want := sample()
	b := want.encode()
	if len(b) != want.size() || cap(b) != len(b) {
		t.Errorf("len %d, cap %d, size %d", len(b), cap(b), want.size())
	}
	got, err := decode(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestCodecRefusesWhatItDoesNotKnow(t *testing.T) {
	good := sample()
	b := good.encode()
	for n := range b {
		if _, err := decode(b[:n]); !errors.Is(err, errCodec) {
			t.Errorf("the first %d of %d bytes: %v", n, len(b), err)
		}
	}
	newer := bytes.Clone(b)
	newer[0]++
	unsorted := stored{status: 200, header: []field{{"B", nil}, {"A", nil}}}
	twice := stored{status: 200, header: []field{{"A", nil}, {"A", nil}}}
	nameless := stored{status: 200, header: []field{{"", nil}}}
	for name, b := range map[string][]byte{
		"a newer version":         newer,
		"version 0":               append([]byte{0}, b[1:]...),
		"bytes after the end":     append(bytes.Clone(b), 0),
		"status 99":               (&stored{status: 99}).encode(),
		"status 103":              (&stored{status: 103}).encode(),
		"status 1000":             (&stored{status: 1000}).encode(),
		"names out of order":      unsorted.encode(),
		"a name twice":            twice.encode(),
		"a field without a name":  nameless.encode(),
		"a number in a long form": {1, 0xc9, 0x81, 0x00, 0, 0, 0},
		"too many fields":         binary.AppendUvarint([]byte{1, 0xc8, 1}, maxFields+1),
		"a huge number":           binary.AppendUvarint([]byte{1, 0xc8, 1}, 1<<63),
		"a string past the end":   {1, 0xc8, 1, 1, 200, 1, 'a', 0, 0, 0},
	} {
		if s, err := decode(b); !errors.Is(err, errCodec) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func FuzzCodec(f *testing.F) {
	s := sample()
	f.Add(s.encode())
	f.Add((&stored{status: 204}).encode())
	f.Add([]byte{})
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decode(b)
		if err != nil {
			if !errors.Is(err, errCodec) {
				t.Fatal(err)
			}
			return
		}
		if !s.storable() {
			t.Fatalf("decoded what could not have been stored: %+v", s)
		}
		if again := s.encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, s, again)
		}
	})
}

func TestOutcomeIsWhatAHandlersResponseIsStoredAs(t *testing.T) {
	header := http.Header{"Content-Type": {"text/plain"}, "Date": {"now"}, "Set-Cookie": {"a=b"}, "Content-Length": {"5"},
		"Connection": {"X-Hop"}, "X-Hop": {"1"}, "Trailer": {"X"}, "X": {"1"}}
	out, err := Outcome(201, header, []byte("hello"))
	want := stored{status: 201, header: []field{{"Content-Type", []string{"text/plain"}}}, body: []byte("hello")}
	if err != nil || out.State != stet.Completed || !bytes.Equal(out.Result, want.encode()) {
		t.Errorf("%v, %q, %v", out.State, out.Result, err)
	}
	if out, err := Outcome(502, nil, nil); err != nil || out.State != stet.Failed {
		t.Errorf("502: %v, %v", out.State, err)
	}
	many := http.Header{}
	for i := range maxFields + 1 {
		many[fmt.Sprint("X-", i)] = nil
	}
	for name, try := range map[string]func() (stet.Outcome, error){
		"status 99":        func() (stet.Outcome, error) { return Outcome(99, nil, nil) },
		"status 103":       func() (stet.Outcome, error) { return Outcome(103, nil, nil) },
		"status 1000":      func() (stet.Outcome, error) { return Outcome(1000, nil, nil) },
		"204 with a body":  func() (stet.Outcome, error) { return Outcome(204, nil, []byte("x")) },
		"too many headers": func() (stet.Outcome, error) { return Outcome(200, many, nil) },
	} {
		if _, err := try(); !errors.Is(err, stet.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
