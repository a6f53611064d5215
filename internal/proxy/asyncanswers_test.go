package proxy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/store/memory"
)

// answering is a service that answers with these bytes, each on a connection of its own; the
// last ones continue.
func answering(t *testing.T, answers []string) *service {
	var n atomic.Int32
	return serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		i := int(n.Add(1)) - 1
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, answers[min(i, len(answers)-1)])
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	})
}

// TestAnswersByteForByte: the outcome of an accepted operation whose service sends these bytes.
func TestAnswersByteForByte(t *testing.T) {
	const whole = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
	for name, c := range map[string]struct {
		more, route string
		answers     []string
		status      int
		body        string
		problem     string
		runs        int
	}{
		"the content breaks off":             {"", "", []string{"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart", whole}, 504, "", "outcome-unknown", 1},
		"chunks break off":                   {"", "", []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n", whole}, 504, "", "outcome-unknown", 1},
		"repeatable: the content breaks off": {", repeatable: true", "", []string{"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart", whole}, 201, "ok", "", 2},
		"a refusal breaks off":               {"", "", []string{"HTTP/1.1 429 Slow\r\nContent-Length: 100\r\n\r\npart", whole}, 504, "", "outcome-unknown", 1},
		"switching protocols":                {"", "", []string{"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", whole}, 504, "", "outcome-unknown", 1},
		"informed first":                     {"", "", []string{"HTTP/1.1 103 Early\r\nLink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + whole}, 201, "ok", "", 1},
		"999":                                {"", "", []string{"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\nok", whole}, 999, "ok", "", 1},
		"099":                                {"", "", []string{"HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok", whole}, 500, "", "response-invalid", 1},
		"204 with content":                   {"", "", []string{"HTTP/1.1 204 None\r\nContent-Length: 2\r\n\r\nok", whole}, 204, "", "", 1},
		"304":                                {"", "", []string{"HTTP/1.1 304 Same\r\nContent-Length: 2\r\n\r\n", whole}, 304, "", "", 1},
		"trailers":                           {"", "", []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n"}, 200, "ok", "", 1},
		"no HTTP":                            {"", "", []string{"SSH-2.0-x\r\n", whole}, 504, "", "outcome-unknown", 1},
		"two lengths":                        {"", "", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", whole}, 504, "", "outcome-unknown", 1},
		"settles: the content breaks off":    {"", ", settles: service", []string{"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart", "HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\nno"}, 422, "no", "", 2},
		"settles: a refusal breaks off":      {"", ", settles: service", []string{"HTTP/1.1 422 No\r\nContent-Length: 100\r\n\r\npart", "HTTP/1.1 409 No\r\nContent-Length: 2\r\n\r\nno"}, 409, "no", "", 2},
		"a header of many values":            {"", "", []string{"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("y", 1000)+"\r\n", 900) + "Content-Length: 2\r\n\r\nok", whole}, 200, "ok", "", 1},
		"its own words":                      {"", "", []string{"HTTP/1.1 200 OK\r\nStet-Operation: x\r\nIdempotent-Replayed: maybe\r\nConnection: X-A\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nok"}, 200, "ok", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := answering(t, c.answers)
			f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, c.more, c.route))
			r := f.post("k", "{}", "Prefer", "wait=1")
			for range 10 {
				if r.status == 202 {
					r = f.post("k", "{}", "Prefer", "wait=1")
				}
			}
			again := f.post("k", "{}")
			if r.status != c.status || r.problem() != c.problem || c.problem == "" && r.body != c.body || s.count("k") != c.runs {
				t.Errorf("%d %.300s after %d runs, want %d %s %s after %d", r.status, r.body, s.count("k"), c.status, c.body, c.problem, c.runs)
			}
			if c.problem == "" {
				if again.status != r.status || again.body != r.body {
					t.Errorf("a retry: %d %.300s", again.status, again.body)
				}
				for _, name := range []string{"Date", "Idempotent-Replayed", "Idempotency-Expires", "Preference-Applied"} {
					r.header.Del(name)
					again.header.Del(name)
				}
				if fmt.Sprint(r.header) != fmt.Sprint(again.header) || r.header.Get("Stet-Operation") != "" {
					t.Errorf("%.300v, and then %.300v", r.header, again.header)
				}
			}
			if strings.Contains(f.log.String(), "panic") {
				t.Errorf("the log: %s", f.log.String())
			}
		})
	}
}
