package stethttp_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// A verifier that searches by the reference would find nothing, or something else, by a reference
// that was cut or changed: it is left out, and the log says so.
func TestReferenceInTheContentIsWholeOrLeftOutAndLogged(t *testing.T) {
	most := strings.Repeat("x", store.MaxLabel)
	for name, c := range map[string]struct {
		body, want string
		aloud      bool
		header     []string
	}{
		"text":           {`{"order": {"id": "A 7\u00e9"}}`, "A 7é", false, nil},
		"a number":       {`{"order": {"id": 1042.50}}`, "1042.50", false, nil},
		"the longest":    {`{"order": {"id": "` + most + `"}}`, most, false, nil},
		"kept:":          {`{"order": {"id": "kept:key=k"}}`, "kept:key=k", false, nil},
		"none":           {`{"order": {}}`, "", false, nil},
		"null":           {`{"order": {"id": null}}`, "", false, nil},
		"no JSON":        {`order=7`, "", false, nil},
		"coded":          {`{"order": {"id": "7"}}`, "", false, []string{"Content-Encoding", "gzip"}},
		"too long":       {`{"order": {"id": "` + most + `y"}}`, "", true, nil},
		"a control":      {`{"order": {"id": "a\nb"}}`, "", true, nil},
		"sealed":         {`{"order": {"id": "sealed:x"}}`, "", true, nil},
		"true":           {`{"order": {"id": true}}`, "", true, nil},
		"an object":      {`{"order": {"id": {}}}`, "", true, nil},
		"more than once": {`{"order": {"id": "7", "id": "8"}}`, "", true, nil},
	} {
		s := start(t, setup{options: stethttp.Options{Advanced: stethttp.Advanced{RefPointer: "/order/id"}}})
		if r := s.post("k", c.body, c.header...); r.status != 201 {
			t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
		st, err := s.engine.Lookup(t.Context(), s.engine.ID("single-tenant", "k"))
		if err != nil || st.Record.Label.Ref != c.want {
			t.Errorf("%s: the reference is %q, %v; want %q", name, st.Record.Label.Ref, err, c.want)
		}
		if said := s.log.String(); strings.Contains(said, "no reference") != c.aloud || c.aloud && strings.Contains(said, most) {
			t.Errorf("%s: the log says %q", name, said)
		}
	}
	_, err := stethttp.New(start(t, setup{}).engine, stethttp.Options{Scope: stethttp.SingleTenant, Advanced: stethttp.Advanced{RefPointer: "order"}})
	if stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), "RefPointer") {
		t.Errorf("a pointer without a slash: %v", err)
	}
}

func TestReferenceOfTheRequestGoesBeforeThatOfTheContent(t *testing.T) {
	s := start(t, setup{store: memory.New(memory.Options{}), options: stethttp.Options{Advanced: stethttp.Advanced{RefPointer: "/id"}, KeyPolicy: stethttp.KeyPolicy{Pointer: "/key"},
		Ref: func(r *http.Request) string { return r.Header.Get("X-Order") }}})
	for key, header := range map[string][]string{"a": {"X-Order", "of the header"}, "b": nil} {
		s.post("", `{"id": "of the content", "key": "`+key+`"}`, header...)
		want := "of the content"
		if header != nil {
			want = header[1]
		}
		if st, err := s.engine.Lookup(t.Context(), s.engine.ID("single-tenant", key)); err != nil || st.Record.Label.Ref != want {
			t.Errorf("%s: %q, %v; want %q", key, st.Record.Label.Ref, err, want)
		}
	}
}
