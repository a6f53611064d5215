package sqs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg/sqs"
)

func TestCheckRefusesInvalidMessages(t *testing.T) {
	with := func(name, value string) stet.Message {
		return stet.Message{To: "q", Body: []byte("x"), Header: map[string]string{name: value}}
	}
	many := make(map[string]string)
	for i := range 10 {
		many[fmt.Sprint("x", i)] = "x"
	}
	for name, m := range map[string]stet.Message{
		"no body":                {To: "q"},
		"a body that is no text": {To: "q", Body: []byte{0xff}},
		"a body with NUL":        {To: "q", Body: []byte{0}},
		"too many headers":       {To: "q", Body: []byte("x"), Header: many},
		"a large message":        {To: "q", Body: make([]byte, 1<<20)},
		"a long group":           {To: "q.fifo", Body: []byte("x"), Key: strings.Repeat("x", 129)},
		"an empty value":         with("x", ""),
		"a name of theirs":       with("AWS.Trace", "x"),
		"dots":                   with("a..b", "x"),
		"a name with a space":    with("a b", "x"),
	} {
		if err := sqs.Check(m); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, m := range []stet.Message{with("content-type", "text/plain; a=\"b\""), {To: "q", Key: strings.Repeat("é", 100), Body: []byte("é\r\n\t")}} {
		if err := sqs.Check(m); err != nil {
			t.Error(err)
		}
	}
}
