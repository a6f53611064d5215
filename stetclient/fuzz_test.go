package stetclient

import (
	"net/http"
	"testing"
	"time"
)

// FuzzResolution: with any response, a replay is not sent again, and each wait ends.
func FuzzResolution(f *testing.F) {
	f.Add(409, "application/problem+json", `{"type":"about:blank","retryable":true,"execution":"not executed"}`, "3", false)
	f.Add(503, "text/html", "<p>", "Fri, 31 Dec 1999 23:59:59 GMT", false)
	f.Add(201, "application/json", "{}", "", true)
	f.Fuzz(func(t *testing.T, status int, contentType, body, after string, replayed bool) {
		h := http.Header{"Content-Type": {contentType}, "Retry-After": {after}}
		v := resolutionOf(status, h, replayed, parseProblem(h, []byte(body)))
		if replayed && v.Retry {
			t.Errorf("a replay is sent again: %+v", v)
		}
		if v.After < 0 || v.After > 100*365*24*time.Hour {
			t.Errorf("the pause is %v", v.After)
		}
	})
}
