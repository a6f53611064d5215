package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestMalformedAnswerIsNotInTheLog(t *testing.T) {
	for _, answer := range []string{"HTTP/1.1 secret\r\n\r\n", "secret\r\n\r\n", "HTTP/1.1 200 OK\r\nsecret\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: secret\r\n\r\n"} {
		s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, answer)
				_ = c.Close()
			}
		})
		f := start(t, yamlFor(s.URL, "http1", single))
		if r := f.post("k", "{}"); r.problem() != "outcome-unknown" || strings.Contains(f.log.String(), "secret") || strings.Contains(r.body, "secret") {
			t.Errorf("%q: %d %s, log %s", answer, r.status, r.body, f.log)
		}
	}
}
