package mysql

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

func TestViewShowsOperationsToPeople(t *testing.T) {
	s := openStore(t, Options{})
	req := request("k")
	req.Label = store.Label{Class: "payments", Name: "POST /zahlungen/ü", Ref: "order 1042"}
	out := store.Settlement{State: store.Completed, Result: store.Result{Status: 201, Type: "application/json", Body: []byte(`{"id":"ü"}`)}}
	if err := s.Settle(t.Context(), mustClaim(t, s, req).Claim(), out, keep); err != nil {
		t.Fatal(err)
	}
	var state, name, body, claimed string
	var attempt int
	err := s.DB().QueryRow(`
SELECT state, name, attempt, claimed_at, body FROM stet_operations WHERE ref = 'order 1042';
`).Scan(&state, &name, &attempt, &claimed, &body)
	if err != nil || state != "completed" || name != req.Label.Name || attempt != 1 || body != `{"id":"ü"}` {
		t.Errorf("the view shows %s, %s, %d, %s, %s, %v", state, name, attempt, claimed, body, err)
	}
	if at, err := time.Parse("2006-01-02 15:04:05.000000", claimed); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("claimed at %s (UTC), %v", claimed, err)
	}
}

func TestProcessesMigrateAtTheSameTime(t *testing.T) {
	dsn := rig.MariaDB(t).Database(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if err := Migrate(context.Background(), dsn); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := openStore(t, Options{}, dsn)
	mustSettle(t, s, mustClaim(t, s, request("k")).Claim(), "x")
}

// The counter of fences survives a restart, also if the last records are deleted.
func TestFencesGrowAfterARestartOfTheServer(t *testing.T) {
	server := rig.NewMariaDB(t, rig.MariaDBOptions{})
	dsn := server.Database(t)
	s := openStore(t, Options{}, dsn)
	var last int64
	for range 3 {
		rec := mustClaim(t, s, request("k"))
		if rec.Fence <= last {
			t.Errorf("the fence is %d, after %d", rec.Fence, last)
		}
		last = rec.Fence
		exec(t, s.DB(), "DELETE FROM stet_records")
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
