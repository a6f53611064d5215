package stethttp_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// TestMalformedContentTypeHidesNoForm that something before has read: net/http
// accepts parts of a malformed or repeated one.
func TestMalformedContentTypeHidesNoForm(t *testing.T) {
	for name, contentType := range map[string]string{
		"well-formed":    "Content-Type: application/x-www-form-urlencoded\r\n",
		"bad parameter":  "Content-Type: application/x-www-form-urlencoded; x\r\n",
		"there twice":    "Content-Type: application/x-www-form-urlencoded\r\nContent-Type: text/plain\r\n",
		"in other cases": "content-type: Application/X-WWW-Form-URLencoded\r\n",
	} {
		s := start(t, setup{options: stethttp.Options{Scope: func(r *http.Request) (string, error) { return "shop", r.ParseForm() }},
			handler: func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.FormValue("amount"))) }})
		if name == "bad parameter" { // its error is often ignored
			s = start(t, setup{options: stethttp.Options{Scope: func(r *http.Request) (string, error) { return "shop" + r.FormValue("shop"), nil }}})
		}
		for _, amount := range []string{"10", "99"} {
			r := s.raw("POST / HTTP/1.1\r\nHost: x\r\n"+contentType+"Idempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n9\r\namount="+amount+"\r\n0\r\n\r\n", false)
			if r.status != 500 || r.name() != "misconfigured" {
				t.Errorf("%s: %d %s (%v)", name, r.status, r.body, r.err)
			}
		}
		s.wantRuns(0)
	}
}

// TestTargetInAbsoluteFormIsUnchanged: also if a prefix of it was
// stripped.
func TestTargetInAbsoluteFormIsUnchanged(t *testing.T) {
	s := start(t, setup{around: func(h http.Handler) http.Handler {
		mux := http.NewServeMux()
		for _, prefix := range []string{"/refunds", "/charges"} {
			mux.Handle(prefix+"/", http.StripPrefix(prefix, h))
		}
		return mux
	}})
	post := func(target string) reply {
		return s.raw("POST "+target+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n", false)
	}
	wantReply(t, post("/refunds/%7e?a"), 201, "", false)
	wantReply(t, post("http://x/refunds/%7e?a"), 201, "", true)
	wantProblem(t, post("http://x/charges/%7e?a"), 422, "mismatch")
	wantProblem(t, post("http://x/refunds/%7e"), 422, "mismatch")
	wantProblem(t, post("http://x/refunds/~?a"), 422, "mismatch")
}

// TestMethodInAnotherCaseIsProtected: to a handler that does not look at it, or
// folds its case, it is the same.
func TestMethodInAnotherCaseIsProtected(t *testing.T) {
	s := start(t, setup{})
	for i := range 2 {
		wantReply(t, s.do(s.request("post", "/", "k", "x")), 201, "x", i > 0)
	}
	wantProblem(t, s.do(s.request("Patch", "/", "", "x")), 400, "key-missing")
	wantProblem(t, s.do(s.request("POST", "/", "k", "x")), 422, "mismatch")
	s.wantRuns(1)
}

// TestRemovedOriginStaysRemoved: the handler has removed an origin that was allowed
// around it.
func TestRemovedOriginStaysRemoved(t *testing.T) {
	s := start(t, setup{around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
			h.ServeHTTP(w, r)
		})
	}, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Del("Access-Control-Allow-Origin")
		w.WriteHeader(http.StatusCreated)
	}})
	for i := range 2 {
		r := s.post("k", "", "Origin", "https://"+strconv.Itoa(i)+".example")
		wantReply(t, r, 201, "", i > 0)
		if allowed, ok := r.header["Access-Control-Allow-Origin"]; ok {
			t.Errorf("replayed %v: %q is allowed", i > 0, allowed)
		}
	}
}
