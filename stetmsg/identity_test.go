package stetmsg_test

import (
	"errors"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

func envelope(m order) stetmsg.Envelope {
	return stetmsg.Envelope{Body: []byte(m.Body), Header: func(name string) (string, bool) { return m.ID, name == "id" && m.ID != "none" }}
}

func TestHeaderIsTheKeyAndTheBodyTheFingerprint(t *testing.T) {
	byID := stetmsg.By(envelope, stetmsg.Header("orders", "id"))
	op, err := byID(order{"1", "a"})
	if want := (stet.Op{Scope: "orders", Key: "1", Fingerprint: stet.NewFingerprint([]byte("a")), Name: "orders"}); err != nil || op != want {
		t.Fatal(op, err)
	}
	for _, id := range []string{"", "none"} {
		if _, err := byID(order{id, "a"}); err == nil {
			t.Errorf("a message with the id %q has an identity", id)
		}
	}
	if _, err := stetmsg.By(envelope, stetmsg.Header("orders", "other"))(order{"1", "a"}); err == nil {
		t.Error("a missing header is an identity")
	}
}

func TestDigestMakesEqualBodiesOneOperation(t *testing.T) {
	byBody := stetmsg.By(envelope, stetmsg.Digest("orders"))
	a, _ := byBody(order{"1", "a"})
	b, _ := byBody(order{"2", "a"})
	c, _ := byBody(order{"1", "b"})
	if a != b || a.Key == c.Key || len(a.Key) > store.MaxKey {
		t.Fatal(a, b, c)
	}
}

func TestWithFingerprintReplacesTheFingerprint(t *testing.T) {
	of := func(e stetmsg.Envelope) (store.Fingerprint, error) {
		switch string(e.Body) {
		case "bad":
			return store.Fingerprint{}, errors.New("no order")
		case "zero":
			return store.Fingerprint{}, nil
		}
		return stet.NewFingerprint([]byte("order"), e.Body), nil
	}
	id := stetmsg.By(envelope, stetmsg.Header("orders", "id").WithFingerprint(of))
	op, err := id(order{"1", "a"})
	if want := (stet.Op{Scope: "orders", Key: "1", Fingerprint: stet.NewFingerprint([]byte("order"), []byte("a")), Name: "orders"}); err != nil || op != want {
		t.Fatal(op, err)
	}
	for _, m := range []order{{"1", "bad"}, {"1", "zero"}, {"none", "a"}} {
		if op, err := id(m); err == nil {
			t.Errorf("%v has an identity: %v", m, op)
		}
	}
}
