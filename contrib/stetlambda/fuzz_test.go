package stetlambda_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httputil"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet/contrib/stetlambda"
)

// FuzzHTTP has events that clients shape: none may panic, and each that reaches a handler is a
// request that can be written as HTTP.
func FuzzHTTP(f *testing.F) {
	f.Add("POST", "/a%2Fb", "x=%zz", "idempotency-key", `"a","b"`, "aGVsbG8=", "a=b; c", true)
	f.Add("GET", "//evil?", "", "host", "a b", "\xff", "", false)
	f.Fuzz(func(t *testing.T, method, path, query, name, value, body, cookie string, base64 bool) {
		var e events.APIGatewayV2HTTPRequest
		e.Version, e.RawPath, e.RawQueryString, e.Body, e.IsBase64Encoded = "2.0", path, query, body, base64
		e.Headers, e.Cookies = map[string]string{name: value}, []string{cookie}
		e.RequestContext.HTTP.Method, e.RequestContext.HTTP.SourceIP = method, value
		h := stetlambda.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "" || r.URL.Path[0] != '/' {
				t.Errorf("the path is %q", r.URL.Path)
			}
			if _, err := httputil.DumpRequest(r, true); err != nil {
				t.Error(err)
			}
			w.Header().Set("X", value)
			_, _ = w.Write([]byte(body))
		}))
		out, err := h(context.Background(), e)
		if err != nil {
			return
		}
		if b, err := json.Marshal(out); err != nil || !json.Valid(b) || out.StatusCode < 200 {
			t.Errorf("%v: %s", err, b)
		}
	})
}
