package stethttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

func TestEarlyHintsAreForwardedAndNotStored(t *testing.T) {
	hinted := make(chan struct{})
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		for _, name := range []string{"Idempotent-Replayed", "Idempotency-Execution"} { // of another operation
			w.Header().Set(name, "true")
		}
		w.WriteHeader(http.StatusEarlyHints)
		select { // at once, not with the final response
		case <-hinted:
		case <-time.After(time.Minute):
			t.Error("the client did not get the hint")
		}
		w.Header().Del("Link")
		w.Header().Set("Location", "/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	}})
	hints := 0
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		if hints++; code != 103 || h.Get("Link") == "" || h.Get("Idempotent-Replayed") != "" || h.Get("Idempotency-Execution") != "" {
			t.Errorf("got %d %v; want code == 103, h.Get(\"Link\") != \"\"", code, h)
		}
		close(hinted)
		return nil
	}}
	for i := range 2 {
		req := s.request("POST", "/payments", "k", "{}")
		r := s.do(req.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
		wantReply(t, r, 201, "made", i > 0)
		if r.header.Get("Location") != "/1" || r.header.Get("Link") != "" {
			t.Errorf("got %v; want r.header.Get(\"Location\") == \"/1\", r.header.Get(\"Link\") == \"\"", r.header)
		}
	}
	if hints != 1 {
		t.Errorf("%d hints, want one, from the run", hints)
	}
}

func TestHeadersThatAreNeverStored(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, name := range []string{"Keep-Alive", "Te", "Upgrade", "Proxy-Authenticate", "Proxy-Connection", "X-Hop", "X-Hop2", "Set-Cookie", "X-Kept", "Idempotent-Replayed"} {
			h.Set(name, "v")
		}
		h.Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		h["Connection"] = []string{"X-Hop, keep-alive", "x-hop2"}
		h["X-List"] = []string{"a, b", "c"}
		h.Set("Cache-Control", "max-age=60")
		w.WriteHeader(http.StatusOK)
	}})
	first := s.post("k", "{}")
	for _, name := range []string{"Keep-Alive", "Te", "Upgrade", "Proxy-Authenticate", "Proxy-Connection", "X-Hop", "X-Hop2", "Set-Cookie", "X-Kept"} {
		if first.header.Get(name) != "v" {
			t.Errorf("the first response lost %s", name)
		}
	}
	if first.header.Get("Date") != "Thu, 01 Jan 1970 00:00:00 GMT" || first.header.Get("Cache-Control") != "max-age=60" {
		t.Errorf("the first response was touched: %v", first.header)
	}
	retry := s.post("k", "{}")
	for _, name := range []string{"Connection", "Keep-Alive", "Te", "Upgrade", "Proxy-Authenticate", "Proxy-Connection", "X-Hop", "X-Hop2", "Set-Cookie"} {
		if _, ok := retry.header[name]; ok {
			t.Errorf("the replay has %s", name)
		}
	}
	if date, err := http.ParseTime(retry.header.Get("Date")); err != nil || date.Year() == 1970 {
		t.Errorf("Date %v, %v", date, err)
	}
	if l := retry.header["X-List"]; len(l) != 2 || l[0] != "a, b" || retry.header.Get("X-Kept") != "v" || retry.header.Get("Cache-Control") != "max-age=60" {
		t.Errorf("got %v; want len(l) == 2, l[0] == \"a, b\", retry.header.Get(\"X-Kept\") == \"v\", retry.header.Get(\"Cache-Control\") == \"max-age=60\"", retry.header)
	}
}

func TestStoredHeadersAreConfigurable(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-A", "X-B", "Set-Cookie", "Content-Type"} {
			w.Header().Set(name, "v")
		}
		w.WriteHeader(http.StatusOK)
	}
	for _, c := range []struct {
		o    stethttp.Options
		want string
	}{
		{stethttp.Options{}, "X-A X-B Content-Type"},
		{stethttp.Options{Advanced: stethttp.Advanced{DropHeaders: []string{"x-a"}}}, "X-B Content-Type"},
		{stethttp.Options{Advanced: stethttp.Advanced{KeepHeaders: []string{"x-a", "x-b"}, DropHeaders: []string{"X-B"}}}, "X-A Content-Type"},
		{stethttp.Options{Advanced: stethttp.Advanced{KeepHeaders: []string{}}}, "Content-Type"},
		{stethttp.Options{Advanced: stethttp.Advanced{KeepHeaders: []string{}, DropHeaders: []string{"content-type"}}}, ""},
		{stethttp.Options{Advanced: stethttp.Advanced{StoreSetCookie: true}}, "X-A X-B Set-Cookie Content-Type"},
	} {
		s := start(t, setup{options: c.o, handler: handler})
		s.post("k", "{}")
		r := s.post("k", "{}")
		var got []string
		for _, name := range []string{"X-A", "X-B", "Set-Cookie", "Content-Type"} {
			if r.header.Get(name) != "" {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.o, got, c.want)
		}
	}
}

func TestHeadersOfOuterMiddlewareAreItsOwn(t *testing.T) {
	n := 0
	s := start(t, setup{around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n++
			w.Header().Set("X-Request-Id", fmt.Sprint(n))
			w.Header().Set("X-Removed", "1")
			w.Header().Set("Vary", "Origin")
			h.ServeHTTP(w, r)
		})
	}, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Del("X-Removed")
		_, _ = io.WriteString(w, w.Header().Get("X-Request-Id"))
	}})
	for i := range 2 {
		r := s.post("k", "{}")
		wantReply(t, r, 200, "1", i > 0)
		if r.header.Get("X-Request-Id") != fmt.Sprint(i+1) || len(r.header["Vary"]) != 2 {
			t.Errorf("got %v; want r.header.Get(\"X-Request-Id\") == fmt.Sprint(i+1), len(r.header[\"Vary\"]) == 2", r.header)
		}
	}
}

func TestHeaderMayNotChangeOnceWritten(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("X-Late", "1")
		w.WriteHeader(http.StatusTeapot)
	}})
	for i := range 2 {
		r := s.post("k", "{}")
		wantReply(t, r, 202, "", i > 0)
		if r.header.Get("X-Late") != "" {
			t.Errorf("got %v; want r.header.Get(\"X-Late\") == \"\"", r.header)
		}
	}
}

func TestContentTypeIsDetectedAsWithoutStet(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"html": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"in pieces": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<ht")
			_, _ = io.WriteString(w, "ml>")
		},
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<ht")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "ml>")
		},
		"empty": func(http.ResponseWriter, *http.Request) {},
		"suppressed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "<html>")
		},
		"encoded": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "x")
			_, _ = io.WriteString(w, "<html>")
		},
		"CR LF": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain\r\nX-Evil: 1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bare := start(t, setup{around: func(http.Handler) http.Handler { return h }}).post("k", "{}")
			s := start(t, setup{handler: h, options: stethttp.Options{Advanced: stethttp.Advanced{AllowEmpty: true}}})
			for range 2 {
				if r := s.post("k", "{}", "Accept-Encoding", "x"); fmt.Sprint(r.header["Content-Type"]) != fmt.Sprint(bare.header["Content-Type"]) ||
					r.body != bare.body || r.header.Get("X-Evil") != "" {
					t.Errorf("%v, without stet %v", r.header, bare.header)
				}
			}
		})
	}
}

func TestTwoHundredHeadersAreReplayed(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		for i := range 200 {
			w.Header().Set(fmt.Sprint("X-H-", i), fmt.Sprint(i))
		}
		w.WriteHeader(http.StatusOK)
	}})
	for i := range 2 {
		r := s.post("k", "{}")
		wantReply(t, r, 200, "", i > 0)
		for i := range 200 {
			if r.header.Get(fmt.Sprint("X-H-", i)) != fmt.Sprint(i) {
				t.Errorf("header %d: %q", i, r.header.Get(fmt.Sprint("X-H-", i)))
			}
		}
	}
}

func TestReadFromDoesNotBypassTheCapture(t *testing.T) {
	body := strings.Repeat("0123456789", 10_000)
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader(body)}) // no WriterTo
	}})
	wantReply(t, s.post("k", "{}"), 200, body, false)
	wantReply(t, s.post("k", "{}"), 200, body, true)
}

func TestControllerCannotGetPastTheCapture(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("the writer can be unwrapped")
		}
		rc := http.NewResponseController(w)
		for name, err := range map[string]error{
			"SetReadDeadline":  rc.SetReadDeadline(time.Now().Add(time.Minute)),
			"SetWriteDeadline": rc.SetWriteDeadline(time.Now().Add(time.Minute)),
			"EnableFullDuplex": rc.EnableFullDuplex(),
			"Flush":            rc.Flush(),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		conn, _, err := rc.Hijack()
		if conn != nil || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "Options.Skip") {
			t.Errorf("Hijack: %v, %v", conn, err)
		}
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "not hijacked")
	}})
	wantReply(t, s.post("k", "{}"), 200, "not hijacked", false)
	wantReply(t, s.post("k", "{}"), 200, "not hijacked", true)
}

func TestOptionThatPanicsSettlesLikeTheHandler(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{NotExecuted: func(int, http.Header) bool { panic("boom") }}})
	if r := s.post("k", "{}"); r.err == nil {
		t.Errorf("the first client got %d %q", r.status, r.body)
	}
	for range 2 {
		wantProblem(t, s.post("k", "{}"), 500, "handler-panicked")
	}
	s.wantRuns(1)
}

func TestStatusThatIsNone(t *testing.T) {
	for _, status := range []int{-1, 0, 99, 101, 1000} {
		s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "body")
		}})
		first, retry := s.post("k", "{}"), s.post("k", "{}")
		wantProblem(t, first, 500, "response-invalid")
		wantProblem(t, retry, 500, "response-invalid")
		if first.body != retry.body || !retry.replayed() || first.header.Get("Location") != "" {
			t.Errorf("first %s, retry %s", first.body, retry.body)
		}
		wantSaidAlike(t, first, retry)
		s.wantRuns(1)
	}
}

func TestWritesAreRefusedAsWithoutStet(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("got %v; want errors.Is(err, http.ErrBodyNotAllowed)", err)
			}
		case "/long":
			w.Header().Set("Content-Length", "3")
			if _, err := io.WriteString(w, "abc"); err != nil {
				t.Error(err)
			}
			if _, err := w.Write([]byte("d")); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("got %v; want errors.Is(err, http.ErrContentLength)", err)
			}
		case "/garbled":
			w.Header().Set("Content-Length", "x")
			_, _ = io.WriteString(w, "abc")
		case "/short":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "abc")
		}
	}})
	for i := range 2 {
		wantReply(t, s.do(s.request("POST", "/204", "1", "")), 204, "", i > 0)
		wantReply(t, s.do(s.request("POST", "/long", "2", "")), 200, "abc", i > 0)
		wantReply(t, s.do(s.request("POST", "/garbled", "3", "")), 200, "abc", i > 0)
	}
	if r := s.do(s.request("POST", "/short", "4", "")); r.err == nil {
		t.Errorf("a response that is cut came whole: %q", r.body)
	}
	wantProblem(t, s.do(s.request("POST", "/short", "4", "")), 410, "result-expired") // never half a response that looks whole
	s.wantRuns(4)
}

func TestWriteAfterReturnIsHarmless(t *testing.T) {
	kept := make(chan http.ResponseWriter, 1)
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		kept <- w
	}})
	wantReply(t, s.post("k", "{}"), 200, "first", false)
	w := <-kept
	w.Header().Set("X-Late", "1")
	w.WriteHeader(http.StatusInternalServerError)
	if _, err := w.Write([]byte("late")); err == nil {
		t.Error("a late write went through")
	}
	if _, err := io.WriteString(w, "late"); err == nil {
		t.Error("a late write went through")
	}
	w.(http.Flusher).Flush()
	if err := http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)); err == nil {
		t.Error("a late deadline went through")
	}
	wantReply(t, s.post("k", "{}"), 200, "first", true)
}

func TestReplayHonoursAcceptEncoding(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		_, _ = io.WriteString(w, "packed")
	}})
	send := func(accept string) reply { return s.post("k", "{}", "Accept-Encoding", accept) }
	wantReply(t, send("br"), 200, "packed", false)
	for _, accept := range []string{"br", "gzip, BR;q=0.5", "*", "gzip;q=0, *;q=0.1"} {
		wantReply(t, send(accept), 200, "packed", true)
	}
	for _, accept := range []string{"gzip", "identity", "br;q=0", "*;q=0", "br;q=0, *", "br;q=x"} {
		wantProblem(t, send(accept), 406, "coding-not-acceptable")
	}
	// Without the header, any coding is acceptable.
	r := s.raw("POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}", false)
	wantReply(t, r, 200, "packed", true)
	s.wantRuns(1)
}

func TestFailWhenStaleIsATimeout(t *testing.T) {
	b := newBlocking()
	store := newFaulty()
	s := start(t, setup{store: store, handler: b.ServeHTTP, engine: stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}}})
	s.abandon("k", "{}", b)
	r1, r2 := s.post("k", "{}"), s.post("k", "{}")
	wantProblem(t, r1, 504, "processing-timed-out")
	if r1.body != r2.body || !r1.replayed() {
		t.Errorf("%s\n%s", r1.body, r2.body)
	}
}

func TestAbandonedOperationIsUnknown(t *testing.T) {
	b := newBlocking()
	s := start(t, setup{store: newFaulty(), handler: b.ServeHTTP})
	s.abandon("k", "{}", b)
	r := s.post("k", "{}")
	wantProblem(t, r, 504, "outcome-unknown")
	if r.header.Get("Retry-After") != "" {
		t.Errorf("Retry-After %q, and there is no verifier", r.header.Get("Retry-After"))
	}
	wantProblem(t, s.post("k", "{other}"), 422, "mismatch")
	verifying := start(t, setup{store: s.store, engine: stet.Options{Policy: stet.Policy{Verify: verifyUnknown}}})
	if r := verifying.post("k", "{}"); r.name() != "outcome-unknown" || r.header.Get("Retry-After") == "" {
		t.Errorf("got %v %s; want r.name() == \"outcome-unknown\", r.header.Get(\"Retry-After\") != \"\"", r.header, r.body)
	}
	known := start(t, setup{store: s.store, engine: stet.Options{Policy: stet.Policy{Verify: verifyHappened}}})
	wantReply(t, known.post("k", "{}"), 201, "found", true)
	wantReply(t, s.post("k", "{}"), 201, "found", true)
}

func TestDamagedResultIsNotReplayed(t *testing.T) {
	b := newBlocking()
	s := start(t, setup{store: newFaulty(), handler: b.ServeHTTP})
	s.abandon("k", "{}", b)
	wantReply(t, start(t, setup{store: s.store, engine: sealed()}).post("k", "{}"), 201, "found", true)
	wantProblem(t, s.post("k", "{}"), 500, "result-unreadable")
	s.wantRuns(1)
}

func TestConnectionsAreReused(t *testing.T) {
	s := start(t, setup{})
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for i := range 5 {
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}")
		wantReply(t, readReply(in), 201, "{}", i > 0)
	}
}
