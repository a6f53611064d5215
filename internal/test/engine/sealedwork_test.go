package engine_test

import (
	"bytes"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

// The store has scope, key and payload of a job. With encryption they cannot be read there.
func TestAcceptedOperationCannotBeReadWithEncryption(t *testing.T) {
	who := stet.Op{Scope: "scope-canary", Key: "key-canary"}
	work := stet.Work{Name: "orders", Payload: []byte(`"payload-canary"`)}
	for name, o := range map[string]stet.Options{"plain": {}, "encrypted": encrypted(secret("k", 1))} {
		store := memory.New(memory.Options{})
		e := newEngine(t, store, o)
		if _, err := e.Accept(t.Context(), who, work); err != nil {
			t.Fatal(err)
		}
		rec, err := store.Look(t.Context(), e.ID(who.Scope, who.Key))
		if err != nil || len(rec.Work) == 0 {
			t.Fatalf("got %+v, %v; want len(rec.Work) != 0, no error", rec, err)
		}
		if name == "encrypted" && bytes.Contains(rec.Work, []byte("orders")) {
			t.Errorf("%s", rec.Work)
		}
		if name == "plain" && !bytes.Contains(rec.Work, []byte("orders")) { // docs/security.md says so
			t.Errorf("%s", rec.Work)
		}
	}
}
