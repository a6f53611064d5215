package stethttp_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

func TestBodies(t *testing.T) {
	const head = "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"
	big := strings.Repeat("x", 8<<20)
	for _, c := range []struct {
		name    string
		request string
		end     bool // nothing follows: the upload was cut
		status  int
		problem string
		body    string
	}{
		{"chunked", head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", false, 201, "", "{}"},
		{"chunked, bad chunk", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", false, 400, "body-unreadable", ""},
		{"chunked, cut", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{}", true, 400, "body-unreadable", ""},
		{"chunked, without its end", head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", true, 400, "body-unreadable", ""},
		{"shorter than Content-Length", head + "Content-Length: 100\r\n\r\n{}", true, 400, "body-unreadable", ""},
		{"cut in the middle", head + "Content-Length: 1000000\r\n\r\n" + big[:500_000], true, 400, "body-unreadable", ""},
		{"8 MiB declared", head + "Content-Length: 8388608\r\n\r\n", false, 413, "body-too-large", ""},
		{"8 MiB sent", head + "Content-Length: 8388608\r\n\r\n" + big, false, 413, "body-too-large", ""},
		{"8 MiB chunked", head + "Transfer-Encoding: chunked\r\n\r\n800000\r\n" + big + "\r\n0\r\n\r\n", false, 413, "body-too-large", ""},
		{"at the limit", head + "Content-Length: 1048576\r\n\r\n" + big[:1<<20], false, 201, "", big[:1<<20]},
		{"one above the limit", head + "Content-Length: 1048577\r\n\r\n" + big[:1<<20+1], false, 413, "body-too-large", ""},
		{"empty with a content type", head + "Content-Type: application/json\r\nContent-Length: 0\r\n\r\n", false, 201, "", ""},
		{"no length", head + "\r\n", false, 201, "", ""},
		{"multipart that is none", head + "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 2\r\n\r\n{}", false, 201, "", "{}"},
		{"multipart without boundary", head + "Content-Type: multipart/form-data\r\nContent-Length: 2\r\n\r\n{}", false, 201, "", "{}"},
		{"content type that is none", head + "Content-Type: ;;;\r\nContent-Length: 2\r\n\r\n{}", false, 201, "", "{}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, setup{engine: stet.Options{Policy: stet.Policy{MaxResult: 2 << 20}}})
			r := s.raw(c.request, c.end)
			if c.problem != "" {
				wantProblem(t, r, c.status, c.problem)
				s.wantRuns(0)
				// It was not claimed either.
				wantReply(t, s.post("k", "{}"), 201, "{}", false)
				return
			}
			wantReply(t, r, c.status, c.body, false)
			wantReply(t, s.raw(c.request, c.end), c.status, c.body, true)
			s.wantRuns(1)
		})
	}
}

func TestBodyIsNeverDecompressed(t *testing.T) {
	var bomb bytes.Buffer
	zw, _ := gzip.NewWriterLevel(&bomb, gzip.BestSpeed)
	if _, err := io.CopyN(zw, zeros{}, 32<<20); err != nil {
		t.Fatal(err)
	}
	_ = zw.Close()
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if n != int64(bomb.Len()) {
			t.Errorf("the handler read %d bytes of %d", n, bomb.Len())
		}
		w.WriteHeader(http.StatusOK)
	}})
	for i := range 2 {
		wantReply(t, s.post("k", bomb.String(), "Content-Encoding", "gzip"), 200, "", i > 0)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestRefusedFromHeadersAloneWithoutContinue(t *testing.T) {
	s := start(t, setup{})
	for _, c := range []struct {
		header, problem string
		status          int
	}{
		{"", "key-missing", 400},
		{"Idempotency-Key: \"\r\n", "key-invalid", 400},
		{"Idempotency-Key: a\r\nIdempotency-Key: b\r\n", "key-repeated", 400},
		{"Idempotency-Key: k\r\nX-Large: 1\r\n", "body-too-large", 413},
	} {
		length := "2"
		if c.status == 413 {
			length = "8388608"
		}
		r := s.raw("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "+length+"\r\n"+c.header+"\r\n", false)
		wantProblem(t, r, c.status, c.problem) // the first response, not a 100
	}
	s.wantRuns(0)

	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n")
	if r := readReply(in); r.status != 100 {
		t.Fatalf("%d, %v; want 100", r.status, r.err)
	}
	_, _ = io.WriteString(conn, "{}")
	wantReply(t, readReply(in), 201, "{}", false)
}

func TestBodyOfAWrongLengthIsStillBounded(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{MaxBody: 10}, around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = io.NopCloser(io.LimitReader(zeros{}, 1<<40)) // as decompressing middleware does
			h.ServeHTTP(w, r)
		})
	}})
	wantProblem(t, s.post("k", "{}"), 413, "body-too-large")
	s.wantRuns(0)
}

func TestBodyCannotBeReadAfterTheHandler(t *testing.T) {
	var kept io.ReadCloser
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) { kept = r.Body }})
	s.post("k", "secret")
	s.post("k2", "others")
	if n, err := kept.Read(make([]byte, 6)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("got %d, %v; want n == 0, errors.Is(err, http.ErrBodyReadAfterClose)", n, err)
	}
}

func TestTemporaryFilesOfAFormAreRemoved(t *testing.T) {
	var form *http.Request
	s := start(t, setup{around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			form = r
		})
	}, handler: func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
	}})
	body := "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n" + strings.Repeat("x", 1000) + "\r\n--b--\r\n"
	s.post("k", body, "Content-Type", "multipart/form-data; boundary=b")
	if form.MultipartForm == nil { // where net/http looks for what to remove
		t.Error("the server does not know of the form")
	}
}

func TestRequestThatEndedIsNotBegun(t *testing.T) {
	s := start(t, setup{around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
		})
	}})
	wantProblem(t, s.post("k", "{}"), 503, "request-ended")
	s.wantRuns(0)
}

func TestClientThatLeavesDoesNotStopTheHandler(t *testing.T) {
	entered, gone, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-gone
		_, err := io.WriteString(w, "charged")
		if err == nil {
			err = r.Context().Err()
		}
		done <- err
	}, around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-First") != "" {
				go func() { // the server has noticed that the client left
					<-r.Context().Done()
					close(gone)
				}()
			}
			h.ServeHTTP(w, r)
		})
	}})
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan reply)
	go func() { first <- s.do(s.request("POST", "/payments", "k", "{}", "X-First", "1").WithContext(ctx)) }()
	<-entered
	leave()
	if r := <-first; r.err == nil {
		t.Errorf("the first client got %d", r.status)
	}
	if err := <-done; err != nil {
		t.Errorf("the handler noticed: %v", err)
	}
	wantReply(t, s.post("k", "{}", "Prefer", "wait=10"), 200, "charged", true)
	s.wantRuns(1)
}

func TestHandlerSeesItsRequest(t *testing.T) {
	type ctxKey struct{}
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		run := stet.FromContext(r.Context())
		if run == nil || run.Op().Key != "k" || run.Op().Scope != "single-tenant" || run.Fence() == 0 || run.Attempt() != 1 {
			t.Errorf("run %v", run)
		}
		if r.Context().Value(ctxKey{}) != "v" || r.Context().Value(http.ServerContextKey) == nil {
			t.Error("values of the context are lost")
		}
		if r.PathValue("id") != "7" || r.ContentLength != 2 || r.Header.Get("X-A") != "b" {
			t.Errorf("request %+v", r)
		}
		w.WriteHeader(http.StatusOK)
	}, around: func(h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /payments/{id}", func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ctxKey{}, "v")))
		})
		return mux
	}})
	if r := s.do(s.request("POST", "/payments/7", "k", "{}", "X-A", "b")); r.status != 200 {
		t.Errorf("got %d %s; want r.status == 200", r.status, r.body)
	}
	s.wantRuns(1)
}

func TestRequestNotMadeByAServer(t *testing.T) {
	s := start(t, setup{})
	h := stethttp.Must(stethttp.New(s.engine, stethttp.Options{Scope: stethttp.SingleTenant})).Handler(http.NotFoundHandler())
	r, err := http.NewRequest(http.MethodPost, "http://x/a?b", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	for i := range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 404 || (w.Header().Get("Idempotent-Replayed") != "") != (i > 0) {
			t.Errorf("got %d %v; want w.Code == 404, (w.Header().Get(\"Idempotent-Replayed\") != \"\") != (i <= 0)", w.Code, w.Header())
		}
	}
}
