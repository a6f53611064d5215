package admin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// hurt is a store with a record that cannot be read, until it is expired.
type hurt struct {
	*memory.Store
	rec store.Record
}

func (s *hurt) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if s.rec.Damage != "" && id == s.rec.ID {
		return store.Record{}, errors.Join(store.ErrDamaged, errors.New(s.rec.Damage))
	}
	return s.Store.Read(ctx, id)
}

func (s *hurt) Browse(ctx context.Context, q store.Query) (store.Page, error) {
	p, err := s.Store.Browse(ctx, q)
	if s.rec.Damage != "" && q.After == "" && len(q.States) == 0 {
		p.Records = append(p.Records, s.rec)
	}
	return p, err
}

func (s *hurt) Expire(ctx context.Context, c store.Claim) error {
	switch {
	case s.rec.Damage == "" || c.ID != s.rec.ID:
		return s.Store.Expire(ctx, c)
	case c != s.rec.Claim():
		return store.ErrFenced
	}
	s.rec.Damage = ""
	return nil
}

// TestOperatorSeesDamagedRecordsAndCanExpireThem, here and by the admin API.
func TestOperatorSeesDamagedRecordsAndCanExpireThem(t *testing.T) {
	for _, remote := range []bool{false, true} {
		for _, id := range []store.ID{store.Digest("", "acme", "k"), {}} { // the row may have lost its ID, too
			st := &hurt{memory.New(memory.Options{}), store.Record{ID: id, Owner: store.NewOwner(), Fence: 41, Damage: "the row is no record"}}
			d := at(t, st, remote)
			page, err := d.List(t.Context(), admin.Query{})
			if err != nil || len(page.Records) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			shown := page.Records[0]
			if shown.State != admin.Damaged || shown.Fence != 41 || !strings.Contains(shown.Note(), "no record") {
				t.Errorf("it is listed as %+v: %s", shown, shown.Note())
			}
			if got, err := d.Get(t.Context(), id, true); err != nil || !reflect.DeepEqual(got, shown) {
				t.Errorf("%+v, %v; listed as %+v", got, err, shown)
			}
			c := admin.Change{Action: admin.Expire, Fence: 41, Reason: "r", Actor: "a"}
			for name, wrong := range map[string]admin.Change{
				"resolved":             {Action: admin.Resolve, As: "completed", Fence: 41, Reason: "r", Actor: "a", DryRun: true},
				"with another's fence": {Action: admin.Expire, Fence: 42, Reason: "r", Actor: "a"},
			} {
				_, err := d.Change(t.Context(), id, wrong)
				if own, ok := errors.AsType[*admin.Error](err); !ok || own.Condition != admin.NotPossible && own.Condition != admin.Changed {
					t.Errorf("%s: %v", name, err)
				}
			}
			if e, err := d.Change(t.Context(), id, c); err != nil || e.Result != admin.Done || e.From.State != admin.Damaged || st.rec.Damage != "" {
				t.Errorf("%+v, %v", e, err)
			}
		}
	}
}

// at returns the API at a store, or at the admin API of a process that has it.
func at(t *testing.T, store store.Store, remote bool) admin.API {
	t.Helper()
	engine := stettest.Engine(t, store, stet.Options{SweepEvery: -1})
	if !remote {
		return &admin.Local{Engine: engine, HTTP: responses, Audit: func(context.Context, admin.Entry) error { return nil }}
	}
	h, err := dashboard.New(engine, dashboard.Options{Tokens: []dashboard.Token{{Name: dashboard.DefaultTokenName, Secret: token, Change: true}}, Audit: slog.NewJSONHandler(io.Discard, nil), ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix("/stet", h))
	t.Cleanup(server.Close)
	d, err := admin.NewRemote(server.URL+"/stet", token)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
