package stethttp

import (
	"fmt"
	"net/http"
	"reflect"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

func TestOutcomeEqualsTheStoredResponseOfAHandler(t *testing.T) {
	header := http.Header{"Content-Type": {"text/plain"}, "Date": {"now"}, "Set-Cookie": {"a=b"}, "Content-Length": {"5"},
		"Connection": {"X-Hop"}, "X-Hop": {"1"}, "Trailer": {"X"}, "X": {"1"}}
	out, err := Outcome(201, header, []byte("hello"))
	want := stet.Outcome{Adapter: store.AdapterHTTP, Status: 201, Type: "text/plain", Header: []store.Field{{Name: "X", Values: []string{"1"}}}, Body: []byte("hello")}
	if err != nil || !reflect.DeepEqual(out, want) {
		t.Errorf("%+v, %v; want %+v", out, err, want)
	}
	if out, err := Outcome(502, nil, nil); err != nil || !out.Failed {
		t.Errorf("502: %+v, %v", out, err)
	}
	many := http.Header{}
	for i := range store.MaxFields + 1 {
		many[fmt.Sprint("X-", i)] = nil
	}
	for name, try := range map[string]func() (stet.Outcome, error){
		"status 99":        func() (stet.Outcome, error) { return Outcome(99, nil, nil) },
		"status 103":       func() (stet.Outcome, error) { return Outcome(103, nil, nil) },
		"status 1000":      func() (stet.Outcome, error) { return Outcome(1000, nil, nil) },
		"204 with a body":  func() (stet.Outcome, error) { return Outcome(204, nil, []byte("x")) },
		"too many headers": func() (stet.Outcome, error) { return Outcome(200, many, nil) },
	} {
		if _, err := try(); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
