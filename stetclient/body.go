package stetclient

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/stet-go/stet/internal/misuse"
)

// body is a request's body, which each attempt sends again.
type body struct {
	get   func() (io.ReadCloser, error) // the request's GetBody; nil if the body is in memory
	bytes []byte
}

// load takes the body of a request, and closes it. It uses GetBody, unless inMemory is
// true. Otherwise it reads at most limit bytes.
func (b *body) load(req *http.Request, limit int64, inMemory bool) error {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	defer func() { _ = req.Body.Close() }() // it was only read
	if req.GetBody != nil && !inMemory {
		b.get = req.GetBody
		return nil
	}
	read, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	switch {
	case err != nil:
		return err
	case int64(len(read)) > limit:
		return misuse.Errorf("stetclient: the body has more than %d bytes: set Options.MaxBody, or Request.GetBody if there is no journal", limit)
	}
	b.bytes = read
	return nil
}

// open returns the body for an attempt; nil if it is empty.
func (b *body) open() (io.ReadCloser, error) {
	switch {
	case b.get != nil:
		return b.get()
	case len(b.bytes) == 0:
		return nil, nil //nolint:nilnil // an empty body is no error
	}
	return inMemory(b.bytes), nil
}

// inMemory returns b as a body.
func inMemory(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// readUpTo reads at most limit+1 bytes; whole reports whether those are all and at most limit.
func readUpTo(r io.Reader, limit int) (read []byte, whole bool, err error) {
	read, err = io.ReadAll(io.LimitReader(r, int64(limit)+1))
	return read, err == nil && len(read) <= limit, err
}

// stream is a response's body that is returned before all of it was read.
type stream struct {
	io.Reader
	c    *call
	body io.Closer
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &Error{Reason: ReasonTruncated, Info: s.c.info(), Cause: err}
	}
	return n, err
}

// Close implements io.Closer.
func (s *stream) Close() error {
	err := s.body.Close()
	s.c.got.cancel(nil)
	return err
}

// buffers reports whether a response is read before it is returned, and the limit in bytes.
func (o *Options) buffers(res *http.Response) (limit int, yes bool) {
	if res.StatusCode >= 400 {
		return max(o.MaxResponse, maxProblem), true
	}
	return o.MaxResponse, o.MaxResponse >= 0 && !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
}
