package postgres

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// What cannot be read shares statements with others, and costs them nothing.
func TestUnreadableRowHidesNoOther(t *testing.T) {
	pool := database(t)
	s := open(t, pool, Options{Writers: 1, Readers: 1})
	for column, value := range map[string]string{"state": "7", "owner": "'x'", "scope": "''", "fingerprint": "'x'"} {
		bad, good := request("bad "+column), request("good "+column)
		for _, req := range []store.ClaimRequest{bad, good} {
			if _, err := s.Accept(t.Context(), req, []byte("work"), 0); err != nil {
				t.Fatal(err)
			}
		}
		execSQL(t, pool, "UPDATE stet.records SET "+column+" = "+value+" WHERE id = $1", bad.ID[:])
		var calls sync.WaitGroup
		for range 20 {
			for _, req := range []store.ClaimRequest{bad, good} {
				calls.Go(func() {
					_, err := s.Read(t.Context(), req.ID)
					_, asked := s.Accept(t.Context(), req, []byte("work"), 0)
					for _, err := range []error{err, asked} {
						if errors.Is(err, store.ErrDamaged) != (req.ID == bad.ID) || err != nil && req.ID == good.ID {
							t.Errorf("damaged %s: %v for %v", column, err, req.ID == bad.ID)
						}
					}
				})
			}
		}
		calls.Wait()
		recs, err := s.Due(t.Context(), 10, time.Hour)
		partial, ok := errors.AsType[*store.PartialError](err)
		if len(recs) != 1 || recs[0].ID != good.ID || !ok || len(partial.Claims) != 1 || partial.Claims[0].ID != bad.ID {
			t.Errorf("damaged %s: due are %+v, %v", column, recs, err)
		}
		page, err := s.Browse(t.Context(), store.Query{})
		shown := 0
		for _, rec := range page.Records {
			if rec.Damage != "" {
				shown++
				if err := s.Expire(t.Context(), rec.Claim()); err != nil {
					t.Errorf("damaged %s: Expire: %v", column, err)
				}
			}
		}
		if err != nil || shown != 1 {
			t.Errorf("damaged %s: %d are shown, %v", column, shown, err)
		}
		if rec := mustRead(t, s, bad.ID); rec.State != store.Failed || !rec.Gone {
			t.Errorf("damaged %s: it has become %+v", column, rec)
		}
	}
}
