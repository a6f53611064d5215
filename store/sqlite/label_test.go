package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

func TestMoreNamesThanAreLookedAtComeInTurns(t *testing.T) {
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
		recs, err := s.Due(t.Context(), store.DueRun, 1000, time.Hour)
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
	if _, err := s.Claim(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	var id, state, class, name, ref, at string
	err := s.DB().QueryRow("SELECT id, state, class, name, ref, claimed_at FROM stet_operations").Scan(&id, &state, &class, &name, &ref, &at)
	if err != nil || id != req.ID.String() || state != "running" || class != "pay" || name != "POST /v1/payments" || ref != "order 7" || len(at) != len("2006-01-02 15:04:05.000Z") {
		t.Errorf("%s %s %s %s %s %s, %v", id, state, class, name, ref, at, err)
	}
}
