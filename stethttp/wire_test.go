package stethttp_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

func TestKeysOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name    string
		headers string // as sent
		status  int
		problem string
	}{
		{"absent", "", 400, "key-missing"},
		{"empty", "Idempotency-Key:\r\n", 400, "key-invalid"},
		{"empty quoted", "Idempotency-Key: \"\"\r\n", 400, "key-invalid"},
		{"one space", "Idempotency-Key:  \r\n", 400, "key-invalid"},
		{"255 bytes", "Idempotency-Key: " + strings.Repeat("k", 255) + "\r\n", 201, ""},
		{"256 bytes", "Idempotency-Key: " + strings.Repeat("k", 256) + "\r\n", 400, "key-invalid"},
		{"257 bytes", "Idempotency-Key: " + strings.Repeat("k", 257) + "\r\n", 400, "key-invalid"},
		{"64 KB", "Idempotency-Key: " + strings.Repeat("k", 64<<10) + "\r\n", 400, "key-invalid"},
		{"two headers", "Idempotency-Key: a\r\nIdempotency-Key: a\r\n", 400, "key-repeated"},
		{"two headers, one empty", "Idempotency-Key: a\r\nIdempotency-Key:\r\n", 400, "key-repeated"},
		{"two headers in other cases", "Idempotency-Key: a\r\nidempotency-KEY: a\r\n", 400, "key-repeated"},
		{"a,b", "Idempotency-Key: a,b\r\n", 400, "key-invalid"},
		{"quoted a,b", "Idempotency-Key: \"a,b\"\r\n", 201, ""},
		{"list of quoted", "Idempotency-Key: \"a\", \"b\"\r\n", 400, "key-invalid"},
		{"unterminated", "Idempotency-Key: \"unterminated\r\n", 400, "key-invalid"},
		{"parameters", "Idempotency-Key: \"a\";p=1\r\n", 201, ""},
		{"TAB inside quotes", "Idempotency-Key: \"a\tb\"\r\n", 400, "key-invalid"},
		{"invalid UTF-8", "Idempotency-Key: a\xff\r\n", 400, "key-invalid"},
		{"composed", "Idempotency-Key: caf\u00e9\r\n", 400, "key-invalid"},
		{"decomposed", "Idempotency-Key: cafe\u0301\r\n", 400, "key-invalid"},
		{"zero-width joiner", "Idempotency-Key: a\u200db\r\n", 400, "key-invalid"},
		{"right-to-left override", "Idempotency-Key: a\u202eb\r\n", 400, "key-invalid"},
		{"path", "Idempotency-Key: ../\r\n", 201, ""},
		{"cluster slot", "Idempotency-Key: {x}1\r\n", 201, ""},
		{"glob", "Idempotency-Key: *\r\n", 201, ""},
		{"colon", "Idempotency-Key: :\r\n", 201, ""},
		{"escaped NUL", "Idempotency-Key: %00\r\n", 201, ""},
		// net/http itself refuses these before any handler.
		{"NUL", "Idempotency-Key: a\x00b\r\n", 400, ""},
		{"DEL", "Idempotency-Key: a\x7fb\r\n", 400, ""},
		{"CR", "Idempotency-Key: a\rb\r\n", 400, ""},
		{"LF then text", "Idempotency-Key: a\nb\r\n", 400, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, setup{})
			r := s.raw("POST /payments HTTP/1.1\r\nHost: x\r\n"+c.headers+"Content-Length: 2\r\n\r\n{}", false)
			if c.problem != "" {
				wantProblem(t, r, c.status, c.problem)
			} else if r.err != nil || r.status != c.status {
				t.Errorf("%d, %v; want %d", r.status, r.err, c.status)
			}
			want := int64(0)
			if c.status == 201 {
				want = 1
			}
			s.wantRuns(want)
		})
	}
}

// raw sends bytes as they are, perhaps nothing more after them, and reads one
// response.
func (s *service) raw(request string, end bool) reply {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() { // the server may answer, and close, before it has read it all
		defer close(sent)
		_, _ = io.WriteString(conn, request)
		if end {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}()
	defer func() { _ = conn.Close(); <-sent }()
	return readReply(bufio.NewReader(conn))
}

func readReply(in *bufio.Reader) reply {
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, resp.Trailer, string(body), err}
}

func TestRepeatedKeyIsRefusedOnHTTP2(t *testing.T) {
	s := start(t, setup{http2: true})
	req := s.request("POST", "/payments", "a", "{}", "Idempotency-Key", "b")
	r := s.do(req)
	wantProblem(t, r, 400, "key-repeated")
	wantReply(t, s.post("a", "{}"), 201, "{}", false)
	wantReply(t, s.post("a", "{}"), 201, "{}", true)
	s.wantRuns(1)
}

func TestQuotedAndBareKeyNameOneOperation(t *testing.T) {
	s := start(t, setup{})
	wantReply(t, s.post("a", "{}"), 201, "{}", false)
	wantReply(t, s.post(`"a"`, "{}"), 201, "{}", true)
	wantReply(t, s.post(`"a";p=1`, "{}"), 201, "{}", true)
	wantReply(t, s.post("A", "{}"), 201, "{}", false)
	s.wantRuns(2)
}

func TestStrictTakesOnlyTheQuotedForm(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{KeyPolicy: stethttp.KeyPolicy{Strict: true}}})
	wantProblem(t, s.post("a", "{}"), 400, "key-invalid")
	wantReply(t, s.post(`"a"`, "{}"), 201, "{}", false)
	wantReply(t, s.post(`"a"`, "{}"), 201, "{}", true)
}

func TestFoldCaseMakesKeysOfOtherCaseTheSame(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{KeyPolicy: stethttp.KeyPolicy{FoldCase: true}}})
	wantReply(t, s.post("abc", "{}"), 201, "{}", false)
	wantReply(t, s.post("ABC", "{}"), 201, "{}", true)
}

func TestMissingKeyLinksToDocumentation(t *testing.T) {
	s := start(t, setup{})
	r := s.post("", "{}")
	wantProblem(t, r, 400, "key-missing")
	if want := `<` + stethttp.DefaultProblemBase + `key-missing>; rel="describedby"; type="text/html"`; r.header.Get("Link") != want {
		t.Errorf("Link %q, want %q", r.header.Get("Link"), want)
	}
	s.wantRuns(0)
}

func TestOptionalKeyPassesKeylessRequestsThrough(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Optional: true}})
	wantReply(t, s.post("", "{}"), 201, "{}", false)
	wantReply(t, s.post("", "{}"), 201, "{}", false)
	empty := s.request("POST", "/payments", "", "{}")
	empty.Header["Idempotency-Key"] = []string{""}
	wantProblem(t, s.do(empty), 400, "key-invalid") // present, if empty: never ignored
	s.wantRuns(2)
}
