package sqlite

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// damages are what may become of a row.
var damages = map[string]string{
	"a short owner":       "owner = x'00'",
	"a long scope":        "scope = zeroblob(33)",
	"no fingerprint":      "fingerprint = x''",
	"a state of tomorrow": "state = 99",
	"no state":            "state = 0",
	"a negative fence":    "fence = -fence",
}

// damageRow changes the row of a record.
func damageRow(t testing.TB, s *Store, id store.ID, how string) {
	t.Helper()
	res, err := s.DB().Exec("UPDATE stet_records SET "+how+" WHERE id = ?", id[:])
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); n != 1 || err != nil {
		t.Fatalf("%d rows were damaged, %v", n, err)
	}
}

func waiting(t testing.TB, s *Store, key string) store.Record {
	t.Helper()
	rec, err := s.Accept(t.Context(), request(key), []byte("work of "+key), 0)
	if err != nil || rec.State != store.Accepted {
		t.Fatalf("Accept: %+v, %v", rec, err)
	}
	return rec
}

func TestUnreadableWorkHidesNoOther(t *testing.T) {
	damages := map[string]string{"an ID without a scope": "id = x'ab'", "the state of another queue": "state = 5"}
	for name, how := range everyDamage(damages) {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			s := openStore(t, Options{Clock: clock.Now})
			for i := range 5 {
				waiting(t, s, fmt.Sprint(i))
			}
			damageRow(t, s, request("2").ID, how)
			for range 2 {
				recs, err := s.Due(t.Context(), 10, time.Minute)
				partial, ok := errors.AsType[*store.PartialError](err)
				if len(recs) != 4 || !ok || len(partial.Claims) != 1 || !errors.Is(err, store.ErrDamaged) {
					t.Errorf("Due: %d records, %v", len(recs), err)
				}
				if recs, err := s.Due(t.Context(), 10, time.Minute); len(recs) != 0 || err != nil {
					t.Errorf("Due at once again: %d records, %v", len(recs), err)
				}
				clock.Advance(time.Minute)
			}
		})
	}
}

func everyDamage(more map[string]string) map[string]string {
	all := make(map[string]string)
	for _, m := range []map[string]string{damages, more} {
		for name, how := range m {
			all[name] = how
		}
	}
	return all
}

// A sweep reads due records first: records that it cannot change must not stay
// there.
func TestUnreadableRecordsDoNotFillTheSweep(t *testing.T) {
	more := map[string]string{"an ID without a scope": "id = substr(id, 1, 31)", "a lease without an end": "lease = 9e15"}
	for name, how := range everyDamage(more) {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			s := openStore(t, Options{Clock: clock.Now})
			for i := range 20 {
				mustClaim(t, s, request(fmt.Sprint(i)))
			}
			for i := range 10 {
				damageRow(t, s, request(fmt.Sprint(i)).ID, how)
			}
			clock.Advance(time.Minute)
			named, marked := 0, 0
			for range 4 {
				swept, err := s.Sweep(t.Context(), 5)
				if partial, ok := errors.AsType[*store.PartialError](err); ok {
					named += len(partial.Claims)
				} else if err != nil {
					t.Fatal(err)
				}
				marked += swept.MarkedUnknown
			}
			if named != 10 || marked != 10 {
				t.Errorf("%d were named, and %d unknown; want 10 of each", named, marked)
			}
			if swept, err := s.Sweep(t.Context(), 5); err != nil || swept != (store.Swept{}) {
				t.Errorf("again: %+v, %v", swept, err)
			}
			var kept int
			if err := s.DB().QueryRow("SELECT count(*) FROM stet_records").Scan(&kept); err != nil || kept != 20 {
				t.Errorf("%d records are left, %v", kept, err)
			}
		})
	}
}

func TestOperatorSeesAndPurgesRecordsThatCannotBeRead(t *testing.T) {
	more := map[string]string{"a short ID": "id = substr(id, 1, 31)", "a long ID": "id = CAST(id || zeroblob(100) AS BLOB)"}
	for name, how := range everyDamage(more) {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, Options{})
			for i := range 5 {
				waiting(t, s, fmt.Sprint(i))
			}
			bad := request("2")
			damageRow(t, s, bad.ID, how)
			seen, shown := 0, store.Record{}
			for q := (store.Query{Limit: 1}); ; {
				page, err := s.Browse(t.Context(), q)
				if err != nil || seen > 5 {
					t.Fatalf("%d records, then %v", seen, err)
				}
				for _, rec := range page.Records {
					if seen++; rec.Damage != "" {
						shown = rec
					}
				}
				if q.After = page.Next; q.After == "" {
					break
				}
			}
			if seen != 5 || shown.Damage == "" {
				t.Fatalf("%d records were shown, of the damaged one %+v", seen, shown)
			}
			for _, q := range []store.Query{{States: []store.State{store.Accepted}}, {OlderThan: 1}, {NewerThan: time.Hour, States: []store.State{store.Unknown, store.Accepted}}} {
				page, err := s.Browse(t.Context(), q)
				if err != nil {
					t.Errorf("%+v: %v", q, err)
				}
				for _, rec := range page.Records {
					if rec.Damage != "" {
						t.Errorf("%+v shows %+v", q, rec)
					}
				}
			}
			stale := shown.Claim()
			stale.Fence++
			if err := s.Expire(t.Context(), stale); !errors.Is(err, store.ErrFenced) {
				t.Errorf("Expire with another fence: %v", err)
			}
			if err := s.Expire(t.Context(), shown.Claim()); err != nil {
				t.Fatalf("Expire: %v", err)
			}
			page, err := s.Browse(t.Context(), store.Query{})
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range page.Records {
				if rec.Damage != "" {
					t.Errorf("it is there still: %+v", rec)
				}
			}
			if shown.ID != bad.ID {
				return // no request can name it
			}
			rec := mustRead(t, s, bad.ID)
			if rec.State != store.Failed || !rec.Gone || rec.Attempt != 1 || rec.Fence <= 0 || rec.ForgetAt.Sub(rec.SettledAt) != 30*24*time.Hour {
				t.Errorf("it became %+v", rec)
			}
			if recs, err := s.Due(t.Context(), 10, time.Minute); len(recs) != 4 || err != nil {
				t.Errorf("Due: %d records, %v", len(recs), err)
			}
		})
	}
}

func TestCallThatMeetsAnUnreadableRecordDoesNothingToIt(t *testing.T) {
	s := openStore(t, Options{})
	rec := waiting(t, s, "k")
	damageRow(t, s, rec.ID, damages["a short owner"])
	for name, call := range map[string]func() error{
		"Claim":  func() error { _, err := s.Claim(t.Context(), request("k")); return err },
		"Accept": func() error { _, err := s.Accept(t.Context(), request("k"), nil, 0); return err },
		"Take": func() error {
			_, err := s.Take(t.Context(), store.TakeRequest{ID: rec.ID, Owner: store.NewOwner(), Lease: time.Minute})
			return err
		},
		"Cancel": func() error {
			_, err := s.Cancel(t.Context(), rec.Claim(), store.Settlement{State: store.Failed}, keep)
			return err
		},
		"Read":  func() error { _, err := s.Read(t.Context(), rec.ID); return err },
		"Look":  func() error { _, err := s.Look(t.Context(), rec.ID); return err },
		"RunTx": func() error { _, err := s.RunTx(t.Context(), request("k"), keep, never(t)); return err },
	} {
		if err := call(); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		var state int
		if err := s.DB().QueryRow("SELECT state FROM stet_records").Scan(&state); err != nil || store.State(state) != store.Accepted {
			t.Errorf("%s left the state %v, %v", name, store.State(state), err)
		}
	}
}
