package stet

import (
	"testing"

	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/store"
)

func TestBodyIsKeptAsItIsOnlyIfItWasGiven(t *testing.T) {
	var s sealer
	kept := func(out Outcome) bool {
		r := s.sealed(store.ID{}, out)
		return &r.Body[0] == &out.Body[0]
	}
	given := Outcome{Body: []byte("given")}
	if kept(given) {
		t.Error("the body of a caller is kept, which may change it")
	}
	if coding.Give(&given); !kept(given) {
		t.Error("a body that was given is copied")
	}
	if given.Body = []byte("another"); kept(given) {
		t.Error("another body is kept in place of the one that was given")
	}
	if given.Body = nil; s.sealed(store.ID{}, given).Body != nil {
		t.Error("an outcome without a body has one")
	}
}

func TestEngineThatEncryptsKeepsNoBody(t *testing.T) {
	key, err := newSealer(Encryption{Keys: []EncryptionKey{{Name: "k", Secret: make([]byte, 32)}}})
	if err != nil {
		t.Fatal(err)
	}
	if !coding.Keeps(&Engine{}) || coding.Keeps(&Engine{sealer: key}) || coding.Keeps(nil) {
		t.Error("what is encrypted is not in the memory that was given, what is not is")
	}
}
