package stethttp_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// TestCanonicalVectorsForOtherLanguages is here because package
// canonical has no other test that reads docs.
func TestCanonicalVectorsForOtherLanguages(t *testing.T) {
	for _, v := range stettest.ReadVectors(t).Canonical {
		form, err := canonical.JSON(v.Exclude...)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := form("application/json", v.Body); err != nil || !bytes.Equal(got, v.Form) {
			t.Errorf("%q without %q becomes %q, %v; want %q", v.Body, v.Exclude, got, err, v.Form)
		}
	}
}

func TestRequestVectorsForOtherLanguages(t *testing.T) {
	form, err := canonical.JSON()
	if err != nil {
		t.Fatal(err)
	}
	s := memory.New(memory.Options{})
	e := stettest.Engine(t, s, stet.Options{})
	for _, v := range stettest.ReadVectors(t).Requests {
		o := stethttp.Options{Scope: stethttp.SingleTenant}
		if v.Canonical {
			o.Canonicalize = form
		}
		m, err := stethttp.New(e, o)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(v.Method, v.Target, bytes.NewReader(v.Body))
		for _, field := range v.Headers {
			r.Header.Add(field[0], field[1])
		}
		key := stet.NewKey()
		r.Header.Set("Idempotency-Key", key)
		m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })).ServeHTTP(httptest.NewRecorder(), r)
		rec := stettest.Read(t, s, e.ID("single-tenant", key))
		if got := rec.Fingerprint.String(); got != v.Fingerprint {
			t.Errorf("the fingerprint of %s %s %q %q (canonical: %t) is %s; want %s", v.Method, v.Target, v.Headers, v.Body, v.Canonical, got, v.Fingerprint)
		}
	}
}
