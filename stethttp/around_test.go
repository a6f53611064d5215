package stethttp_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// lateGzip compresses once the response begins, as chi's middleware and gzhttp do.
type lateGzip struct {
	http.ResponseWriter
	gz    *gzip.Writer
	begun bool
}

func (g *lateGzip) WriteHeader(status int) {
	if !g.begun && status >= 200 {
		g.begun = true
		if g.Header().Get("Content-Encoding") == "" {
			g.Header().Set("Content-Encoding", "gzip")
			g.Header().Add("Vary", "Accept-Encoding")
			g.Header().Del("Content-Length")
			g.gz = gzip.NewWriter(g.ResponseWriter)
		}
	}
	g.ResponseWriter.WriteHeader(status)
}

func (g *lateGzip) Write(p []byte) (int, error) {
	g.WriteHeader(http.StatusOK)
	if g.gz == nil {
		return g.ResponseWriter.Write(p)
	}
	return g.gz.Write(p)
}

func (g *lateGzip) Flush() {
	if g.gz != nil {
		_ = g.gz.Flush()
	}
	_ = http.NewResponseController(g.ResponseWriter).Flush()
}

func compressLate(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &lateGzip{ResponseWriter: w}
		h.ServeHTTP(g, r)
		if g.gz != nil {
			_ = g.gz.Close()
		}
	})
}

// earlyGzip says that it compresses before the handler is called, as gorilla's and
// Gin's do.
type earlyGzip struct {
	http.ResponseWriter
	gz *gzip.Writer
}

func (g *earlyGzip) WriteHeader(status int) {
	g.Header().Del("Content-Length")
	g.ResponseWriter.WriteHeader(status)
}
func (g *earlyGzip) Write(p []byte) (int, error) { return g.gz.Write(p) }

func compressEarly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		g := &earlyGzip{w, gzip.NewWriter(w)}
		defer g.gz.Close()
		h.ServeHTTP(g, r)
	})
}

func TestReplayIsReadableThroughACompressorAround(t *testing.T) {
	for name, around := range map[string]func(http.Handler) http.Handler{"late": compressLate, "early": compressEarly} {
		for _, flush := range []bool{false, true} {
			t.Run(fmt.Sprint(name, flush), func(t *testing.T) {
				s := start(t, setup{around: around, handler: func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/plain")
					_, _ = io.WriteString(w, "hello ")
					if flush && name == "late" {
						w.(http.Flusher).Flush()
					}
					_, _ = io.WriteString(w, "world")
				}})
				for i := range 2 { // the client decompresses by itself
					wantReply(t, s.post("k", "x"), 200, "hello world", i > 0)
				}
				wantProblem(t, s.post("k", "y"), 422, "mismatch")
				wantProblem(t, s.post("", "x"), 400, "key-missing")
				plain := start(t, setup{store: s.store}) // nothing of the compressor's was stored
				r := plain.post("k", "x")
				wantReply(t, r, 200, "hello world", true)
				if r.header.Get("Content-Encoding") != "" || r.header.Get("Vary") != "" {
					t.Errorf("got %v; want r.header.Get(\"Content-Encoding\") == \"\", r.header.Get(\"Vary\") == \"\"", r.header)
				}
			})
		}
	}
}

// same fails the test unless the replay has the header and the trailer of the
// first response, but for what says that it is a replay, and how it is framed.
func same(t *testing.T, first, again reply) {
	t.Helper()
	for _, r := range []reply{first, again} {
		for _, name := range []string{"Date", "Cache-Control", "Idempotent-Replayed", "Idempotency-Expires", "Content-Length"} {
			r.header.Del(name)
		}
	}
	equal := func(a, b http.Header) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
	if first.err != nil || again.err != nil || first.status != again.status || first.body != again.body ||
		!equal(first.header, again.header) || !equal(first.trailer, again.trailer) {
		t.Errorf("first  %d %v %v (%v)\nreplay %d %v %v (%v)", first.status, first.header, first.trailer, first.err,
			again.status, again.header, again.trailer, again.err)
	}
}

// headed are handlers whose headers are hard to replay.
func headed() map[string]http.HandlerFunc {
	long := strings.Repeat("hello", 2000)
	return map[string]http.HandlerFunc{
		"deleted": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("X-Frame-Options")
			w.Header().Del("Content-Type")
			_, _ = io.WriteString(w, "<html>")
		},
		"deleted, no content": func(w http.ResponseWriter, _ *http.Request) {
			maps.DeleteFunc(w.Header(), func(string, []string) bool { return true })
			w.WriteHeader(http.StatusOK)
		},
		"deleted, flushed before any content": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("Content-Type")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "<html>")
		},
		"no length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Length"] = []string{""} // net/http would send it like that
			_, _ = io.WriteString(w, "x")
		},
		"length of nothing": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5") // a client of HTTP/2 would wait for that
			w.WriteHeader(http.StatusNoContent)
		},
		"transfer coding": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("Content-Type")
			w.Header().Set("Transfer-Encoding", "chunked")
			_, _ = io.WriteString(w, "<html>")
		},
		"trailer that is a header, too": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, Content-Type, X-Gone")
			w.Header().Set("X-Sum", "pending")
			w.Header().Set("X-Gone", "soon")
			w.Header().Set("Content-Type", "application/pdf")
			_, _ = io.WriteString(w, long)
			w.Header().Set("X-Sum", "done")
			w.Header().Del("X-Gone")
		},
		"trailer that is a header, too, flushed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.Header().Set("X-Sum", "pending")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, long)
			w.Header().Set("X-Sum", "done")
		},
	}
}

func TestReplayHasTheHeaderOfTheFirstResponse(t *testing.T) {
	for name, h := range headed() {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprint(name, http2), func(t *testing.T) {
				around := func(h http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("X-Frame-Options", "DENY")
						w.Header().Set("Content-Type", "application/json")
						h.ServeHTTP(w, r)
					})
				}
				s := start(t, setup{around: around, handler: h, http2: http2})
				first := s.post("k", "x")
				same(t, first, s.post("k", "x"))
				if strings.Contains(name, "length") {
					wantReply(t, first, first.status, first.body, false)
					return // better than without stet
				}
				same(t, start(t, setup{http2: http2, around: func(http.Handler) http.Handler { return around(h) }}).post("k", "x"), first)
				// The stored header does not depend on outer middleware.
				alone := start(t, setup{store: s.store}).post("k", "x")
				if ct := fmt.Sprint(alone.header["Content-Type"]); name == "deleted" && ct != fmt.Sprint(first.header["Content-Type"]) {
					t.Errorf("without outer middleware: %v", alone.header)
				}
			})
		}
	}
}

func TestUntypedContentStaysSo(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, "<html>")
	}})
	same(t, s.post("k", "x"), s.post("k", "x"))
}

func TestStoredCORSFieldsAreSentToTheirOriginOnly(t *testing.T) {
	for allowed, c := range map[string]struct{ same, other, none string }{
		"https://a": {"https://a", "", "https://a"},
		"*":         {"*", "*", "*"},
	} {
		s := start(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", allowed)
			w.Header().Set("Access-Control-Allow-Credentials", "true")
			_, _ = io.WriteString(w, "ok")
		}})
		s.post("k", "x", "Origin", "https://a")
		for origin, want := range map[string]string{"https://a": c.same, "https://b": c.other, "": c.none} {
			var header []string
			if origin != "" {
				header = []string{"Origin", origin}
			}
			r := s.post("k", "x", header...)
			wantReply(t, r, 200, "ok", true)
			if r.header.Get("Access-Control-Allow-Origin") != want || (r.header.Get("Access-Control-Allow-Credentials") == "") != (want == "") {
				t.Errorf("%s, replayed to %q: %v", allowed, origin, r.header)
			}
		}
	}
}

func TestIdenticalRetryIsAcceptableIfTheFirstWas(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "x-own") // whatever the request accepts
		_, _ = io.WriteString(w, "encoded")
	}})
	for i := range 2 {
		r := s.post("k", "x", "Accept-Encoding", "identity")
		wantReply(t, r, 200, "encoded", i > 0)
		if len(r.header["Content-Encoding"]) != 1 {
			t.Errorf("got %v; want len(r.header[\"Content-Encoding\"]) == 1", r.header)
		}
	}
	wantReply(t, s.post("k", "x", "Accept-Encoding", "gzip"), 200, "encoded", true) // the first might have been that one
	wantReply(t, s.post("negotiated", "x", "Accept-Encoding", "x-own"), 200, "encoded", false)
	wantProblem(t, s.post("negotiated", "x", "Accept-Encoding", "identity"), 406, "coding-not-acceptable")
	wantReply(t, s.post("negotiated", "x", "Accept-Encoding", "x-own"), 200, "encoded", true)
}

func TestBodyThatWasReadBeforeIsRefused(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	readForm := func(r *http.Request) { _ = r.FormValue("account") }
	readSome := func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 4)) }
	readParts := func(r *http.Request) {
		if parts, err := r.MultipartReader(); err == nil {
			_, _ = parts.NextPart()
		}
	}
	options := func(read func(*http.Request)) map[string]setup {
		return map[string]setup{
			"scope": {options: stethttp.Options{Scope: func(r *http.Request) (string, error) { read(r); return "a", nil }}},
			"class": {options: stethttp.Options{Class: func(r *http.Request) string { read(r); return "" }}},
			"skip":  {options: stethttp.Options{Skip: func(r *http.Request) bool { read(r); return false }}},
			"around": {around: func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { read(r); h.ServeHTTP(w, r) })
			}},
			"tx":    {tx: true, store: newTxStore(), options: stethttp.Options{Skip: func(r *http.Request) bool { read(r); return false }}},
			"async": {async: &stethttp.AsyncOptions{StatusURL: "/operations/"}, options: stethttp.Options{Scope: func(r *http.Request) (string, error) { read(r); return "a", nil }}},
		}
	}
	for what, c := range map[string]struct {
		read       func(*http.Request)
		mediaType  string
		body       string
		chunkedToo bool
	}{
		"form":      {readForm, form, "account=7&amount=", true},
		"multipart": {readForm, "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n1\r\n--b--\r\n", true},
		"reader":    {readParts, "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n1\r\n--b--\r\n", true},
		"a part":    {readSome, "application/json", `{"amount":1}`, false},
		"all":       {func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, "application/json", `{"amount":1}`, false},
		"replaced": {func(r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body = http.NoBody
		}, "application/json", `{"amount":1}`, false},
	} {
		for where, set := range options(c.read) {
			t.Run(what+" "+where, func(t *testing.T) {
				s := start(t, set)
				for _, amount := range []string{"10", "999999"} {
					wantProblem(t, s.post("k", c.body+amount, "Content-Type", c.mediaType), 500, "misconfigured")
				}
				if c.chunkedToo {
					req := s.request("POST", "/payments", "k2", c.body+"10", "Content-Type", c.mediaType)
					req.ContentLength = -1
					wantProblem(t, s.do(req), 500, "misconfigured")
				}
				s.wantRuns(0)
				if log := s.log.String(); !strings.Contains(log, "ParseForm") || !strings.Contains(log, "put it back") {
					t.Errorf("the log does not say why: %s", log)
				}
			})
		}
	}
}

func TestBodyThatWasPutBackIsFingerprinted(t *testing.T) {
	for what, around := range map[string]func(*http.Request){
		"whole": func(r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(b)))
			_ = r.ParseForm()
			r.Body = io.NopCloser(strings.NewReader(string(b)))
		},
		"decoded": func(r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(b[8:])))
			r.Header.Set("Content-Encoding", "x")
		},
		"decoded, with its length": func(r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(b[8:]))), int64(len(b)-8)
		},
		"a query that was parsed, of a JSON body": func(r *http.Request) {
			r.Header.Set("Content-Type", "application/json")
			_ = r.FormValue("account")
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := start(t, setup{around: func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { around(r); h.ServeHTTP(w, r) })
			}})
			form := []string{"Content-Type", "application/x-www-form-urlencoded"}
			if r := s.post("k", "account=7&amount=10", form...); r.status != 201 || !strings.Contains(r.body, "amount=10") {
				t.Errorf("%d %q: %s", r.status, r.body, s.log)
			}
			wantProblem(t, s.post("k", "account=7&amount=99", form...), 422, "mismatch")
		})
	}
}

func TestEmptyBodyOfUnknownLengthIsNotSuspicious(t *testing.T) {
	s := start(t, setup{})
	const request = "POST /payments HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
	wantReply(t, s.raw(request, false), 201, "", false)
	wantReply(t, s.raw(request, false), 201, "", true)
}

func TestTooLargeNamesTheLimitThatWasMet(t *testing.T) {
	s := start(t, setup{around: func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 10) }})
	for _, length := range []int64{20, -1} {
		req := s.request("POST", "/payments", "k", strings.Repeat("x", 20))
		req.ContentLength = length
		r := s.do(req)
		wantProblem(t, r, 413, "body-too-large")
		if !strings.Contains(r.problem().Detail, " 10 bytes") {
			t.Errorf("got %q; want strings.Contains(r.problem().Detail, \" 10 bytes\")", r.problem().Detail)
		}
	}
}

// Where the end of the connection ends the response, none may end before its
// outcome is durable.
func TestResponseThatTheConnectionEndsIsHeldBack(t *testing.T) {
	const http10 = "POST /payments HTTP/1.0\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"
	const http11 = "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"
	identity := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Transfer-Encoding", "identity")
			h(w, r)
		}
	}
	large := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for range n {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<10)); err != nil {
					return
				}
			}
		}
	}
	flushed := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "paid")
		w.(http.Flusher).Flush()
	}
	for name, c := range map[string]struct {
		request string
		handler http.HandlerFunc
		size    int // of the whole response; 0 if it is refused
		again   string
	}{
		"HTTP/1.0":             {http10, large(5), 5 << 10, "result-expired"},
		"HTTP/1.0, too large":  {http10, large(17 << 10), 0, "result-expired"},
		"identity, flushed":    {http11, identity(flushed), 4, ""},
		"identity":             {http11, identity(large(5)), 5 << 10, "result-expired"},
		"identity, too large":  {http11, identity(large(17 << 10)), 0, "result-expired"},
		"HTTP/1.0 and flushed": {http10, flushed, 4, ""},
	} {
		t.Run(name, func(t *testing.T) {
			store := newFaulty()
			s := start(t, setup{store: store, handler: c.handler, engine: stet.Options{Policy: stet.Policy{MaxResult: 1024}}})
			store.settle.Store(true)
			wantProblem(t, s.raw(c.request, false), 504, "outcome-unknown")
			store.settle.Store(false)
			second := strings.Replace(c.request, "Key: k", "Key: k2", 1)
			r := s.raw(second, false)
			if c.size > 0 && (r.err != nil || r.status != 200 || len(r.body) != c.size) {
				t.Errorf("%d, %d bytes, %v", r.status, len(r.body), r.err)
			} else if c.size == 0 {
				wantProblem(t, r, 410, "result-expired")
			}
			again := s.raw(second, false)
			if again.name() != c.again || c.again == "" && !again.replayed() {
				t.Errorf("again: %d %q", again.status, again.body)
			}
			if c.size == 0 && again.body != r.body {
				t.Errorf("first %q, then %q", r.body, again.body)
			}
			s.wantRuns(2)
		})
	}
}

func TestDeclaredLengthStreamsToHTTP10(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, engine: stet.Options{Policy: stet.Policy{MaxResult: 1024}}, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(17<<20))
		for range 17 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}})
	const request = "POST /payments HTTP/1.0\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"
	store.settle.Store(true)
	if r := s.raw(request, false); r.err == nil {
		t.Errorf("a whole response of %d bytes", len(r.body))
	}
	store.settle.Store(false)
	if r := s.raw(strings.Replace(request, "Key: k", "Key: k2", 1), false); r.err != nil || len(r.body) != 17<<20 {
		t.Errorf("%d bytes, %v", len(r.body), r.err)
	}
}
