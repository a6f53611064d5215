package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

func TestMoreNamesThanOneReadComeInTurns(t *testing.T) {
	s := openStore(t, Options{})
	const n = store.MaxDueNames + 44
	for i := range n {
		req := request(fmt.Sprint(i))
		req.Label.Name = fmt.Sprintf("name %03d", i)
		if _, err := s.Accept(t.Context(), req, []byte("w"), 0); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	for range 3 {
		recs, err := s.Due(t.Context(), 1000, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		got += len(recs)
	}
	if got != n {
		t.Errorf("%d of %d names were due", got, n)
	}
}

func TestOperationsCanBeReadByPeople(t *testing.T) {
	s := openStore(t, Options{})
	req := request("k")
	req.Label = store.Label{Class: "pay", Name: "POST /v1/payments", Ref: "order 7"}
	rec, err := s.Claim(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out := store.Settlement{State: store.Completed, Result: store.Result{Status: 201, Type: "application/json", Head: []byte{1}, Body: []byte(`{"id":"é"}`)}}
	if err := s.Settle(t.Context(), rec.Claim(), out, keep); err != nil {
		t.Fatal(err)
	}
	var media, body string
	var status, size, sealed int
	err = s.DB().QueryRow("SELECT status, content_type, body, body_bytes, sealed FROM stet_operations").Scan(&status, &media, &body, &size, &sealed)
	if err != nil || status != 201 || media != "application/json" || body != `{"id":"é"}` || size != 11 || sealed != 0 {
		t.Errorf("%d %s %s (%d bytes), sealed: %d, %v", status, media, body, size, sealed, err)
	}
	var id, state, class, name, ref, at string
	err = s.DB().QueryRow("SELECT id, state, class, name, ref, claimed_at FROM stet_operations").Scan(&id, &state, &class, &name, &ref, &at)
	if err != nil || id != req.ID.String() || state != "completed" || class != "pay" || name != "POST /v1/payments" || ref != "order 7" || len(at) != len("2006-01-02 15:04:05.000Z") {
		t.Errorf("%s %s %s %s %s %s, %v", id, state, class, name, ref, at, err)
	}
}
