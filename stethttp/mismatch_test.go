package stethttp_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

func TestMismatchNamesTheDifferentPart(t *testing.T) {
	for _, tx := range []bool{false, true} {
		set := setup{tx: tx, handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }, options: stethttp.Options{}}
		if tx {
			set.store = newTxStore()
		}
		s := start(t, set)
		s.do(s.request(http.MethodPost, "/", "k", "one"))
		for request, want := range map[string]struct {
			path, body, detail string
		}{
			"another body": {"/", "two", "same name and other content"},
			"another path": {"/refunds", "one", "another method or path"},
		} {
			r := s.do(s.request(http.MethodPost, want.path, "k", want.body))
			if r.status != 422 || !strings.Contains(r.body, want.detail) || strings.Contains(r.body, `two`) {
				t.Errorf("%s, in a transaction %v: got %d %s", request, tx, r.status, r.body)
			}
		}
	}
}
