package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
)

// TestHintHasNoFieldsForTheProxy: a service can send them in a 103, too.
func TestHintHasNoFieldsForTheProxy(t *testing.T) {
	for path, key := range map[string][]string{"/payments": {"k"}, "/unprotected": nil} {
		s := answering(t, []string{"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nStet-Execution: none\r\nStet-Emit: eyJ0byI6Im9yZGVycyJ9\r\nstet_progress: secret\r\n" +
			"Idempotent-Replayed: true\r\nIdempotency-Execution: executed\r\nSet-Cookie: a=b\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"})
		f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments}]\n"))
		var hint textproto.MIMEHeader
		trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { hint = h; return nil }}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header["Idempotency-Key"] = key
		res, err := f.client.Do(req.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != 201 || string(body) != "ok" {
			t.Errorf("%s: %d %q, %v", path, res.StatusCode, body, err)
		}
		if len(hint) != 1 || hint.Get("Link") != "</x>" {
			t.Errorf("%s: the hint is %v; want the link alone", path, hint)
		}
	}
}
