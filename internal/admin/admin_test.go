package admin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var responses = admin.HTTP{Outcome: stethttp.Outcome, Response: stethttp.StoredResponse}

const token = "a-token-of-24-visible-ch"

// both returns two APIs at one store, in which the operation k of the scope acme
// is unknown, d completed.
func both(t *testing.T) (local, remote admin.API, engine *stet.Engine) {
	t.Helper()
	now := time.Now().Add(-time.Hour)
	st := memory.New(memory.Options{Clock: func() time.Time { return now }})
	engine = stettest.Engine(t, st, stet.Options{SweepEvery: -1})
	run, err := engine.Begin(t.Context(), stet.Op{Scope: "acme", Key: "d", Fingerprint: stet.NewFingerprint([]byte("x"))})
	if err != nil || run.Settle(t.Context(), stet.Outcome{Body: []byte("done")}) != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := st.Claim(t.Context(), store.ClaimRequest{ID: engine.ID("acme", "k"), Scope: store.DigestScope("", "acme"),
			Fingerprint: stet.NewFingerprint([]byte("x")), Owner: store.NewOwner(), Lease: time.Minute}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	h, err := dashboard.New(engine, dashboard.Options{Tokens: []dashboard.Token{{Name: dashboard.DefaultTokenName, Secret: token, Change: true}}, Audit: slog.NewJSONHandler(io.Discard, nil), ErrorLog: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix("/stet", h))
	t.Cleanup(server.Close)
	r, err := admin.NewRemote(server.URL+"/stet", token)
	if err != nil {
		t.Fatal(err)
	}
	return &admin.Local{Engine: engine, HTTP: responses, Audit: func(context.Context, admin.Entry) error { return nil }}, r, engine
}

func TestRemoteAndLocalReturnTheSame(t *testing.T) {
	local, remote, engine := both(t)
	id := engine.ID("acme", "k")
	q := admin.Query{Scope: store.DigestScope("", "acme"), States: []store.State{store.Unknown, store.Completed}, Dead: true, OlderThan: time.Second, NewerThan: 1000 * time.Hour, Sort: "-state", Limit: 1}
	for q.Offset = range 2 {
		l, err := local.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := remote.List(t.Context(), q); err != nil || !reflect.DeepEqual(l, r) || len(l.Records) != 1 || l.Total != 2 || l.Records[0].State != []string{"unknown", "completed"}[q.Offset] {
			t.Errorf("%v: %+v, and here %+v", err, r, l)
		}
	}
	for _, key := range []string{"k", "d", "never"} {
		for _, result := range []bool{false, true} {
			l, errL := local.Get(t.Context(), engine.ID("acme", key), result)
			r, errR := remote.Get(t.Context(), engine.ID("acme", key), result)
			if errL != nil || errR != nil || !reflect.DeepEqual(l, r) {
				t.Errorf("%s: %+v, %v, and here %+v, %v", key, r, errR, l, errL)
			}
		}
	}
	rec, _ := local.Get(t.Context(), id, false)
	for _, c := range []admin.Change{
		{Action: admin.Release, Fence: rec.Fence + 1, Reason: "r", Actor: "a"}, {Action: admin.Expire, Fence: rec.Fence, Reason: "r", Actor: "a"},
		{Action: admin.Release, Fence: rec.Fence, Actor: "a"}, {Action: admin.Release, Fence: rec.Fence, Reason: "r", Actor: "a", Class: "none"},
	} {
		_, errL := local.Change(t.Context(), id, c)
		_, errR := remote.Change(t.Context(), id, c)
		l, okL := errors.AsType[*admin.Error](errL)
		r, okR := errors.AsType[*admin.Error](errR)
		if !okL || !okR || l.Condition != r.Condition || l.Detail != r.Detail || !reflect.DeepEqual(l.Now, r.Now) {
			t.Errorf("%+v: %+v, and here %+v", c, errR, errL)
		}
	}
	c := admin.Change{Action: admin.Resolve, As: "completed", Fence: rec.Fence, Reason: "r", Actor: "a", Response: &admin.Response{Status: 201, Body: []byte{0, 1, 0xff}}}
	e, err := remote.Change(t.Context(), id, c)
	if err != nil || e.Result != admin.Done || e.From.Fence != rec.Fence {
		t.Fatalf("got %+v, %v; want e.Result == admin.Done, e.From.Fence == rec.Fence, no error", e, err)
	}
	if again, err := local.Change(t.Context(), id, c); err != nil || again.Result != admin.Done {
		t.Errorf("the same again: %+v, %v", again, err)
	}
}

func TestTokenIsNotSentWhereOthersCouldReadIt(t *testing.T) {
	for address, want := range map[string]bool{
		"http://127.0.0.1:9090": true, "http://localhost:9090/stet": true, "http://[::1]:9090": true, "https://admin.example": true,
		"http://admin.example": false, "http://10.0.0.7:9090": false, "http://localhost.example": false, "admin.example:9090": false, "ftp://127.0.0.1": false,
		"https://u:p@admin.example": false, "https://admin.example?token=x": false, "": false,
	} {
		if _, err := admin.NewRemote(address, token); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := admin.NewRemote("http://10.0.0.7:9090", ""); err != nil {
		t.Errorf("without a token there is nothing to read: %v", err)
	}
}

func TestRedirectDoesNotTakeTheTokenElsewhere(t *testing.T) {
	asked := make(chan string, 1)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("Authorization") }))
	defer thief.Close()
	server := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	r, err := admin.NewRemote(server.URL, token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.List(t.Context(), admin.Query{}); err == nil || !strings.Contains(err.Error(), "307") {
		t.Error(err)
	}
	select {
	case got := <-asked:
		t.Errorf("it was followed, with %q", got)
	default:
	}
}

func TestRemoteReportsAServerThatIsNotAnAdminAPI(t *testing.T) {
	for _, kind := range []string{"text/html", "application/json"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, "<html>")
		}))
		r, err := admin.NewRemote(server.URL, token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Get(t.Context(), store.ID{}, false); err == nil || !strings.Contains(err.Error(), "address of the admin listener") {
			t.Errorf("%s: %v", kind, err)
		}
		server.Close()
		if _, err := r.Get(t.Context(), store.ID{}, false); err == nil || !strings.Contains(err.Error(), "could not be asked") {
			t.Errorf("closed: %v", err)
		}
	}
}

// The first digits of an ID are its scope's: typed to confirm a change, they would
// confirm that of any other operation of the scope.
func TestConfirmationNamesOneOperation(t *testing.T) {
	seen := map[string]string{}
	for _, key := range []string{"a", "b", "c", "d"} {
		id := store.Digest("", "acme", key).String()
		if other := seen[admin.Short(id)]; other != "" || !strings.HasSuffix(id, admin.Short(id)) || len(admin.Short(id)) != 12 {
			t.Errorf("%s and %s have %s", key, other, admin.Short(id))
		}
		seen[admin.Short(id)] = key
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add("state=unknown,running&state=failed&older=1m&newer=36h&limit=7&after=x")
	f.Add("scope_digest=" + strings.Repeat("ab", 32))
	f.Add("limit=-1")
	f.Add("older=1m&older=2m")
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q, err := admin.ParseQuery(v)
		if err == nil && q.Check() != nil {
			t.Errorf("%q was accepted, which no store accepts: %v", raw, q.Check())
		}
	})
}

func TestChangeWithResponseThatCannotBeSentIsRefused(t *testing.T) {
	local, remote, engine := both(t)
	id := engine.ID("acme", "k")
	rec, err := local.Get(t.Context(), id, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, api := range map[string]admin.API{"local": local, "remote": remote} {
		for _, bad := range []admin.Response{{Status: 99}, {Status: 204, Body: []byte("x")}} {
			_, err := api.Change(t.Context(), id, admin.Change{Action: admin.Resolve, As: "completed", Fence: rec.Fence, Reason: "r", Actor: "a", Response: &bad})
			if own, ok := errors.AsType[*admin.Error](err); !ok || own.Condition != admin.Invalid {
				t.Errorf("%s: status %d, %d bytes: got %v, want an error of the condition %v", name, bad.Status, len(bad.Body), err, admin.Invalid)
			}
		}
	}
	if now, err := local.Get(t.Context(), id, false); err != nil || now.State != rec.State {
		t.Errorf("the operation is %s, %v; want %s as before", now.State, err, rec.State)
	}
}
