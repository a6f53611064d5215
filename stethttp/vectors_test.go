package stethttp_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// vectors are those of docs/vectors.json that are about requests. They were not made by Go.
type vectors struct {
	Canonical []struct {
		Body, Form string
		Exclude    []string
	}
	Requests []struct {
		Method, Target    string
		Headers           [][2]string
		Body, Fingerprint string
		Canonical         bool
	}
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	b, err := os.ReadFile("../docs/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCanonicalVectorsForOtherLanguagesAreWhatGoComputes is here because package
// canonical has no other test that reads docs.
func TestCanonicalVectorsForOtherLanguagesAreWhatGoComputes(t *testing.T) {
	list := readVectors(t).Canonical
	if len(list) < 30 {
		t.Fatalf("%d vectors; want 30 at least", len(list))
	}
	for _, v := range list {
		form, err := canonical.JSON(v.Exclude...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := form("application/json", unhex(t, v.Body))
		if want := unhex(t, v.Form); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q without %q becomes %q, %v; want %q", unhex(t, v.Body), v.Exclude, got, err, want)
		}
	}
}

func TestRequestVectorsForOtherLanguagesAreWhatGoComputes(t *testing.T) {
	list := readVectors(t).Requests
	if len(list) < 15 {
		t.Fatalf("%d vectors; want 15 at least", len(list))
	}
	form, err := canonical.JSON()
	if err != nil {
		t.Fatal(err)
	}
	s := memory.New(memory.Options{})
	e := stettest.Engine(t, s, stet.Options{})
	for _, v := range list {
		o := stethttp.Options{Scope: stethttp.SingleTenant}
		if v.Canonical {
			o.Canonicalize = form
		}
		m, err := stethttp.New(e, o)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(v.Method, v.Target, bytes.NewReader(unhex(t, v.Body)))
		for _, field := range v.Headers {
			r.Header.Add(field[0], field[1])
		}
		key := stet.NewKey()
		r.Header.Set("Idempotency-Key", key)
		m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })).ServeHTTP(httptest.NewRecorder(), r)
		rec := stettest.Read(t, s, e.ID("single-tenant", key))
		if got := rec.Fingerprint.String(); got != v.Fingerprint {
			t.Errorf("the fingerprint of %s %s %q %q (canonical: %t) is %s; want %s", v.Method, v.Target, v.Headers, unhex(t, v.Body), v.Canonical, got, v.Fingerprint)
		}
	}
}
