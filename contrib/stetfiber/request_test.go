package stetfiber_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetfiber"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// TestFormIsTheSameRequestEachTime, though Fiber keeps no order of its fields.
func TestFormIsTheSameRequestEachTime(t *testing.T) {
	form := func(boundary, last string) []byte {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		_ = w.SetBoundary(boundary)
		for i := range 20 {
			_ = w.WriteField(fmt.Sprint("field", i), fmt.Sprint("value ", i))
			f, _ := w.CreateFormFile(fmt.Sprint("file", i%5), fmt.Sprint(i, ".txt"))
			_, _ = f.Write(bytes.Repeat([]byte{'x', '\r', '\n', 0, byte(i)}, 1000*i))
		}
		_ = w.WriteField("last", last)
		_ = w.Close()
		return b.Bytes()
	}
	for name, config := range map[string]fiber.Config{
		"parsed": {}, "not parsed": {DisablePreParseMultipartForm: true}, "streamed": {StreamRequestBody: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, config, stet.Options{}, stethttp.Options{MaxBody: 4 << 20}, func(s *shop, once fiber.Handler) {
				s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error {
					f, err := c.MultipartForm()
					if err != nil {
						return err
					}
					file, err := f.File["file4"][3].Open()
					if err != nil {
						return err
					}
					defer file.Close()
					b, err := io.ReadAll(file)
					return errors.Join(err, c.Status(201).SendString(fmt.Sprint(len(b), f.Value["field7"], c.FormValue("last"))))
				}))
			})
			for i, boundary := range []string{"one", "one", "another", "one"} {
				r := s.post("/orders/7", string(form(boundary, "x")), "Idempotency-Key", "k", "Content-Type", "multipart/form-data; boundary="+boundary)
				s.want("a form", r, 201, "95000 [value 7]x", i > 0)
			}
			s.want("another form", s.post("/orders/7", string(form("one", "y")), "Idempotency-Key", "k", "Content-Type", "multipart/form-data; boundary=one"), 422, "mismatch", false)
			s.ran(1)
			if name != "streamed" { // Fiber has a limit of its own then
				return
			}
			large := strings.Repeat("x", 5<<20)
			b := bytes.Replace(form("one", "x"), []byte("value 7"), []byte(large), 1)
			s.want("a form that is too large", s.post("/orders/7", string(b), "Idempotency-Key", "l", "Content-Type", "multipart/form-data; boundary=one"), 413, "body-too-large", false)
			s.ran(1)
		})
	}
}

// TestStreamedBodyReachesTheHandler whole, of a known length or not.
func TestStreamedBodyReachesTheHandler(t *testing.T) {
	text := strings.Repeat("0123456789", 50_000)
	s := open(t, fiber.Config{StreamRequestBody: true, BodyLimit: 4000}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error { return c.Status(201).Send(c.Body()) }))
	})
	for i, chunked := range []bool{false, true, false} {
		for _, body := range []string{text, "short", ""} {
			var r io.Reader = strings.NewReader(body)
			if chunked {
				r = io.MultiReader(r)
			}
			req, _ := http.NewRequestWithContext(t.Context(), "POST", s.url+"/orders/7", r)
			req.Header.Set("Idempotency-Key", fmt.Sprint("k", len(body)))
			if r := adaptertest.Do(t, req); r.Err != nil || r.Body != body && body != "" || r.Replayed() != (i > 0) {
				t.Errorf("chunked %v: sent %d bytes, got %v", chunked, len(body), r)
			}
		}
	}
}

// TestRestOfARefusedBodyIsNoRequest: the rest on the connection of a body that was
// not read would be taken for the next one.
func TestRestOfARefusedBodyIsNoRequest(t *testing.T) {
	inner := "POST /orders/8 HTTP/1.1\r\nHost: x\r\nIdempotency-Key: smuggled\r\nContent-Length: 0\r\n\r\n"
	for name, header := range map[string]string{"no key": "", "too large": "Idempotency-Key: k\r\n"} {
		s := open(t, fiber.Config{StreamRequestBody: true, BodyLimit: 10}, stet.Options{}, stethttp.Options{MaxBody: 20}, func(s *shop, once fiber.Handler) {
			s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error { return c.SendStatus(201) }))
		})
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		body := strings.Repeat(inner, 300)
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := fmt.Fprintf(conn, "POST /orders/7 HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body); err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(conn) // to the end: the server closes it
		if n := strings.Count(string(answer), "HTTP/1.1 "); n > 1 {
			t.Errorf("%s: the server sent %d responses:\n%s", name, n, answer)
		}
		s.ran(0)
		_ = conn.Close()
	}
}

// TestScopeFindsTheLocals that middleware around has set, and the request as it came.
func TestScopeFindsTheLocals(t *testing.T) {
	type mine struct{}
	var seen *http.Request
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{Scope: func(r *http.Request) (string, error) {
		seen = r
		account, _ := stetfiber.Context(r).Locals("account").(string)
		return account, nil
	}}, func(s *shop, once fiber.Handler) {
		s.app.Use(func(c fiber.Ctx) error {
			c.Locals("account", strings.Clone(c.Get("Account")))
			c.SetContext(context.WithValue(c.Context(), mine{}, "kept"))
			return c.Next()
		})
		s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error {
			run := stet.FromContext(c.Context())
			return c.Status(201).SendString(fmt.Sprint("for ", run.Op().Scope, " ", run.Op().Name, " ", c.Locals("account"), " ", c.Context().Value(mine{})))
		}))
	})
	s.want("a", s.order("Account", "a", "X-Two", "1", "X-Two", "2"), 201, "for a POST /orders/:id a kept", false)
	if seen.Method != "POST" || seen.RequestURI != "/orders/7" || seen.URL.Path != "/orders/7" || seen.PathValue("id") != "7" || seen.Host == "" || seen.RemoteAddr == "" ||
		len(seen.Header["X-Two"]) != 2 || seen.TLS != nil || seen.ContentLength != 2 {
		t.Errorf("the request is %+v", seen)
	}
	s.want("b", s.order("Account", "b"), 201, "for b", false)
	s.want("no scope", s.order(), 403, "scope-missing", false)
	s.ran(2)
}

// TestTargetsThatURLsCannotHave are served, as Fiber does, and told apart.
func TestTargetsThatURLsCannotHave(t *testing.T) {
	s := sell(t, func(c fiber.Ctx) error { return c.Status(201).SendString("paid") })
	ask := func(target, key string) string {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\nContent-Length: 0\r\n\r\n", target, key)
		b, _ := io.ReadAll(conn)
		line, _, _ := strings.Cut(string(b), "\r\n")
		return line
	}
	for _, c := range []struct{ target, key, want string }{
		{"/orders/%zz", "Idempotency-Key: k\r\n", "HTTP/1.1 201 Created"},
		{"/orders/%zz", "Idempotency-Key: k\r\n", "HTTP/1.1 201 Created"},
		{"/orders/%25zz", "Idempotency-Key: k\r\n", "HTTP/1.1 422 Unprocessable Entity"},
		{"/orders/7", "idempotency-key: a\r\nIDEMPOTENCY-KEY: a\r\n", "HTTP/1.1 400 Bad Request"},
		{"/orders/7", "Idempotency-Key : a\r\nIdempotency-Key: b\r\n", "HTTP/1.1 400 Bad Request"},
	} {
		if got := ask(c.target, c.key); got != c.want {
			t.Errorf("%s %q: got %s; want %s", c.target, c.key, got, c.want)
		}
	}
	s.ran(1)
}

// TestTLSStateIsThere, for a Scope that asks for the client's certificate.
func TestTLSStateIsThere(t *testing.T) {
	var state *tls.ConnectionState
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{Scope: func(r *http.Request) (string, error) { state = r.TLS; return "a", nil }},
		func(s *shop, once fiber.Handler) {
			s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error { return c.Status(201).SendString("paid") }))
		})
	adaptertest.Send(t, "GET", s.url, "") // the app is up
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		_ = s.app.Server().ServeConn(tls.Server(server, &tls.Config{Certificates: []tls.Certificate{certificate(t)}}))
	}()
	conn := tls.Client(client, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // there is no name to verify
	if _, err := io.WriteString(conn, "POST /orders/7 HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 12)
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "HTTP/1.1 201" || state == nil || !state.HandshakeComplete {
		t.Errorf("got %q, %v, and TLS %+v", b, err, state)
	}
}

// certificate is that of a server of net/http/httptest.
func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	if len(srv.TLS.Certificates) == 0 {
		t.Fatal("httptest has no certificate")
	}
	return srv.TLS.Certificates[0]
}
