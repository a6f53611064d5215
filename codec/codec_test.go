package codec_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/internal/coding"
)

type amount struct {
	Value    int64
	Currency string
}

type textless struct{ Cause error }

func (*textless) Error() string { return "textless" }

type hidden struct{ _ int }

func (hidden) Error() string { return "hidden" }

type deep struct{ Inner struct{ Any any } }

func (deep) Error() string { return "deep" }

type half struct{ A int }

func (half) Error() string                { return "half" }
func (half) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

type left struct {
	Code  int
	Cause error `json:"-"`
	At    time.Time
}

func (left) Error() string { return "left" }

type own struct{ code int }

func (own) Error() string                   { return "own" }
func (o own) MarshalJSON() ([]byte, error)  { return json.Marshal(o.code) }
func (o *own) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &o.code) }

func TestErrorsThatJSONWouldLoseAreRefused(t *testing.T) {
	for says, kinds := range map[string][]codec.ErrorKind{
		"is an interface":       {codec.ErrorType[*textless]("a")},
		"not exported":          {codec.ErrorType[hidden]("a")},
		"Any of":                {codec.ErrorType[deep]("a")},
		"needs both":            {codec.ErrorType[half]("a")},
		"interface":             {codec.ErrorType[net]("a")},
		"error is nil":          {codec.Sentinel("a", nil)},
		"must not be empty":     {codec.Sentinel("", io.EOF)},
		"one kind only":         {codec.Sentinel("a", io.EOF), codec.ErrorType[left]("a")},
		"neither of Sentinel":   {{}},
		"JSON does not keep it": {codec.ErrorType[*hidden]("a")},
	} {
		if _, err := codec.NewErrors(kinds...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := codec.NewErrors(codec.ErrorType[left]("a"), codec.ErrorType[own]("b"), codec.ErrorType[*own]("c"), codec.ErrorType[*url.EscapeError]("d"), codec.Sentinel("e", io.EOF)); err != nil {
		t.Error(err)
	}
}

// net is an interface that is an error.
type net interface {
	error
	Timeout() bool
}

func TestEachCodecOfSeveralKeepsItsPart(t *testing.T) {
	a, err := codec.NewErrors(codec.Sentinel("eof", io.EOF))
	b, berr := codec.NewErrors(codec.ErrorType[own]("own"))
	if err != nil || berr != nil {
		t.Fatal(err, berr)
	}
	// Two registries have the same form, so that the first takes both parts: a third codec
	// has its own.
	both := codec.JoinErrors(a, b, upper{})
	for _, given := range []error{io.EOF, fmt.Errorf("x: %w", own{5}), errors.Join(io.EOF, own{6}), errors.New("UPPER"), fmt.Errorf("UPPER: %w", io.EOF)} {
		fields := coding.ErrorField(both, given)
		got := coding.Error(both, given.Error(), fields)
		o, ok := errors.AsType[own](got)
		want, _ := errors.AsType[own](given)
		_, up := errors.AsType[loud](got)
		if got.Error() != given.Error() || errors.Is(got, io.EOF) != errors.Is(given, io.EOF) || ok != errors.As(given, new(own)) || o != want || up != strings.Contains(given.Error(), "UPPER") {
			t.Errorf("%v: %v, %v, %v, %v", given, got, o, ok, up)
		}
		if data, ok := coding.Kept(fields, "loud"); ok != up || ok && string(data) != given.Error() {
			t.Errorf("%v: another adapter reads %q, %v", given, data, ok)
		}
	}
}

type loud struct{ error }

// upper keeps errors that shout.
type upper struct{}

func (upper) Encode(err error) (string, []byte) {
	if !strings.Contains(err.Error(), "UPPER") {
		return "", nil
	}
	return "loud", []byte(err.Error())
}

func (upper) Decode(_, form string, data []byte) error {
	if form != "loud" {
		return nil
	}
	return loud{errors.New("another text: " + string(data))}
}

func TestFirstCodecThatKnowsTheValueIsUsed(t *testing.T) {
	c := codec.First(codec.Gob(), codec.JSON())
	for want, v := range map[string]any{"application/x-gob": amount{5, "EUR"}, "application/json": (*amount)(nil)} {
		mediaType, body, err := c.Encode(v)
		if err != nil || mediaType != want {
			t.Errorf("%s: %s, %v", want, mediaType, err)
		}
		if got := new(amount); want == "application/x-gob" && (c.Decode(mediaType, body, got) != nil || *got != v) {
			t.Errorf("%v", got)
		}
	}
	if err := c.Decode("text/plain", []byte("x"), new(string)); !errors.Is(err, codec.ErrUnsupported) {
		t.Error(err)
	}
	for mediaType, want := range map[string]bool{"": true, "application/json": true, "application/problem+json; charset=utf-8": true, "application/JSON": true, "text/json": false, ";": false} {
		if err := codec.JSON().Decode(mediaType, []byte("1"), new(int)); (err == nil) != want {
			t.Errorf("%q: %v", mediaType, err)
		}
	}
}

func TestJSONLosesNoDigit(t *testing.T) {
	const text = `{"id":9007199254740993,"amount":1e400,"list":[0.1]}`
	var got map[string]any
	if err := codec.JSON().Decode("application/json", []byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(got); err != nil || string(again) != `{"amount":1e400,"id":9007199254740993,"list":[0.1]}` {
		t.Errorf("%s, %v", again, err)
	}
	var n int64
	if err := codec.JSON().Decode("application/json", []byte("9007199254740993"), &n); err != nil || n != 9007199254740993 {
		t.Errorf("%d, %v", n, err)
	}
	for _, text := range []string{"", "{", "1 2", "{} x", `{"a":1`} {
		var v any
		var syntax *json.SyntaxError
		if err := codec.JSON().Decode("application/json", []byte(text), &v); !errors.As(err, &syntax) {
			t.Errorf("%q: %v; want a syntax error, as of json.Unmarshal", text, err)
		}
	}
}
