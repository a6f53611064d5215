package engine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

func TestInvalidMessageIsNotEmitted(t *testing.T) {
	huge := errors.New("too large for the broker")
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{CheckMessage: func(m stet.Message) error {
		if len(m.Body) > 10 {
			return huge
		}
		return nil
	}})
	run := take(t, e, accept(t, e, op, parcel))
	for name, m := range map[string]stet.Message{
		"to nowhere":                        {},
		"to a long name":                    {To: strings.Repeat("x", 2000)},
		"to a name with a newline":          {To: "orders\nshipped"},
		"a header without a name":           {To: "orders", Header: map[string]string{"": "x"}},
		"a header's long name":              {To: "orders", Header: map[string]string{strings.Repeat("x", 300): "x"}},
		"a header's name with NUL":          {To: "orders", Header: map[string]string{"a\x00b": "x"}},
		"a key that is no text":             {To: "orders", Key: "\xff"},
		"a message that the broker refuses": {To: "orders", Body: []byte("more than ten bytes")},
	} {
		err := run.Emit(m)
		if stet.KindOf(err) != stet.KindInvalid || name == "a message that the broker refuses" && !errors.Is(err, huge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := run.Emit(stet.Message{To: "orders", Key: "7", Header: map[string]string{"kind": "a\nb"}, Body: []byte("ten bytes.")}); err != nil {
		t.Error(err)
	}
	complete(t, run, "x")
}
