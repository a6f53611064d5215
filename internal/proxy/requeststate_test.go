package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A service that answers at once gets its response through, though the server closes the
// content that was read to its end before the transport has asked for more.
func TestContentStaysAtItsEnd(t *testing.T) {
	body := &serverBody{Reader: strings.NewReader("ask")}
	u := &upload{ReadCloser: body, state: &requestState{proxy: &Proxy{}, control: http.NewResponseController(httptest.NewRecorder())}}
	if b, err := io.ReadAll(u); string(b) != "ask" || err != nil {
		t.Fatalf("the content is %q, %v; want \"ask\"", b, err)
	}
	_ = body.Close()
	if n, err := u.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after its end: %d bytes, %v; want the end", n, err)
	}
}

// serverBody is content that cannot be read once it is closed, as a server's.
type serverBody struct {
	io.Reader
	closed bool
}

func (c *serverBody) Read(p []byte) (int, error) {
	if c.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return c.Reader.Read(p)
}

func (c *serverBody) Close() error {
	c.closed = true
	return nil
}
