package dashboard_test

import (
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/store"
)

// Operators find the operation of a customer by its names, the oldest first.
func TestListSelectsAndOrdersByNames(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{Label: func(op stet.Op) string { return "Tenant " + op.Scope }, Classes: map[string]stet.Policy{"payments": {}, "mail": {}}})
	for i, class := range []string{"mail", "payments", "payments"} {
		n := strconv.Itoa(i)
		run, err := f.engine.Begin(t.Context(), stet.Op{Scope: "t" + n, Key: "k", Class: class, Name: "POST /" + class, Ref: "order " + n})
		if err != nil {
			t.Fatal(err)
		}
		if err := run.MarkUnknown(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.now.add(time.Second)
	}
	for query, want := range map[string]string{
		"class=payments": "order 1, order 2", "class=payments&sort=-claimed": "order 2, order 1", "class=payments&sort=ref": "order 1, order 2", "name=POST /mail": "order 0",
		"ref=order 2": "order 2", "scope_label=Tenant t1": "order 1", "scope_label=Tenant t1&ref=order 2": "", "state=dead,unknown&sort=-scope_label&limit=2": "order 2, order 1",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var refs []string
		for _, rec := range decode[admin.Page](t, f.ask("GET", "/v1/operations?"+values.Encode(), "")).Records {
			refs = append(refs, rec.Ref)
		}
		if got := strings.Join(refs, ", "); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	path := "/v1/operations/" + f.engine.ID("t1", "k").String()
	fence := strconv.FormatInt(decode[admin.Record](t, f.ask("GET", path, "")).Fence, 10)
	entry := decode[admin.Entry](t, f.ask("POST", path+"/release", `{"fence":"`+fence+`","reason":"r"}`))
	if want := (admin.Names{Class: "payments", Name: "POST /payments", Ref: "order 1", ScopeLabel: "Tenant t1"}); entry.Names != want || f.audit.entries(t)[0].Names != want {
		t.Errorf("the audit names %+v, want %+v: %s", entry.Names, want, f.audit)
	}
}

// The bound is of processor time, because other programs may use the machine. In a bubble, because
// a list ends after some seconds.
func TestListOf10000RecordsNeedsLittleProcessorTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, dashboard.Options{}, stet.Options{})
		for i := range 10_000 {
			f.claim("many "+strconv.Itoa(i), 24*time.Hour, false)
		}
		used := func() time.Duration {
			var u syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
				t.Fatal(err)
			}
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		before := used()
		page := decode[admin.Page](t, f.ask("GET", "/v1/operations?state=running&sort=-claimed&limit=50&offset=9950", ""))
		if took := used() - before; took > 10*time.Second || page.Total != 10_002 || len(page.Records) != 50 {
			t.Errorf("%d records of %d took %v of processor time; at most 10 s", len(page.Records), page.Total, took)
		}
	})
}

func TestJobIsCancelledByHand(t *testing.T) {
	f := open(t, dashboard.Options{}, stet.Options{})
	for _, key := range []string{"waits", "runs"} {
		if _, err := f.engine.Accept(t.Context(), op(key), stet.Work{Name: "pay"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.store.Take(t.Context(), store.TakeRequest{ID: f.engine.ID("acme", "runs"), Owner: store.NewOwner(), Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"waits": "failed", "runs": "cancelling"} {
		if e := decode[admin.Entry](t, f.change(key, "cancel", admin.Change{})); e.To != want || e.Result != admin.Done {
			t.Errorf("%s: %+v, want %s", key, e, want)
		}
	}
	if rec := f.record("waits"); rec.State != store.Failed {
		t.Errorf("the job is %v", rec.State)
	}
	for _, key := range []string{"running", "unknown", "completed"} {
		if a := f.change(key, "cancel", admin.Change{}); a.status != 409 || a.problem() != "not-possible" {
			t.Errorf("%s: %d %s", key, a.status, a.body)
		}
	}
	if a := f.change("waits", "cancel", admin.Change{Fence: 1}); a.status != 409 {
		t.Errorf("a stale fence: %d %s", a.status, a.body)
	}
}

// With the key, the process finds an encrypted reference and shows it encrypted.
func TestEncryptedReferenceIsFoundAndNotShown(t *testing.T) {
	secret := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k1", Secret: make([]byte, 32)}}, AcceptPlain: true}
	f := open(t, dashboard.Options{}, stet.Options{Encryption: secret})
	run, err := f.engine.Begin(t.Context(), stet.Op{Scope: "acme", Key: "k", Ref: "order 7"})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
		t.Fatal(err)
	}
	a := f.ask("GET", "/v1/operations?ref=order+7", "")
	page := decode[admin.Page](t, a)
	if page.Total != 1 || !strings.HasPrefix(page.Records[0].Ref, "sealed:") || strings.Contains(a.body, "order 7") {
		t.Fatalf("got %s", a.body)
	}
	if again := decode[admin.Page](t, f.ask("GET", "/v1/operations?ref="+url.QueryEscape(page.Records[0].Ref), "")); again.Total != 1 {
		t.Errorf("by its stored form: %+v", again)
	}
	if other := decode[admin.Page](t, f.ask("GET", "/v1/operations?ref=order+8", "")); other.Total != 0 {
		t.Errorf("another reference: %+v", other)
	}
}

// An operator with the right to change, and only on request, sees which request is unknown.
func TestUnknownOperationIsIdentifiedOnRequest(t *testing.T) {
	secret := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k1", Secret: make([]byte, 32)}}, AcceptPlain: true}
	f := open(t, dashboard.Options{}, stet.Options{Encryption: secret, Policy: stet.Policy{KeepScope: true, KeepKey: true}})
	run, err := f.engine.Begin(t.Context(), stet.Op{Scope: "acme", Key: "k", Ref: "order 7"})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.MarkUnknown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rec := decode[admin.Record](t, f.ask("GET", f.path("k"), "")); !strings.HasPrefix(rec.Ref, "sealed:") || rec.KeptScope != "" || rec.KeptKey != "" {
		t.Errorf("without a request: %+v", rec.Label)
	}
	rec := decode[admin.Record](t, f.ask("GET", f.path("k")+"?result=true", ""))
	if rec.Ref != "order 7" || rec.KeptScope != "acme" || rec.KeptKey != "k" {
		t.Errorf("on request: %+v", rec.Label)
	}
	if entries := f.audit.entries(t); len(entries) != 1 || entries[0].Action != admin.Show || strings.Contains(f.audit.String(), "order 7") {
		t.Errorf("the audit: %s", f.audit)
	}
}
