package stetclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/stet-go/stet/internal/misuse"
)

// body is a request's body, as often as it is needed.
type body struct {
	first io.ReadCloser // the request's own; nil when there is none, or it is in memory
	get   func() (io.ReadCloser, error)
	bytes []byte
	held  bool // bytes is the body
	once  bool // there is only first
}

// load finds out how the body of a request can be sent again: with its GetBody,
// else from memory if it has at most limit bytes; whole asks for it in memory.
func (b *body) load(req *http.Request, limit int64, whole bool) error {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		b.held = true
		return nil
	case req.GetBody != nil && !whole:
		b.first, b.get = req.Body, req.GetBody
		return nil
	case req.ContentLength > limit && !whole:
		b.first, b.once = req.Body, true
		return nil
	}
	read, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	switch {
	case err != nil:
		return errors.Join(err, req.Body.Close())
	case int64(len(read)) <= limit:
		b.bytes, b.held = read, true
		return req.Body.Close()
	case whole:
		_ = req.Body.Close() // the error below says more
		return misuse.Errorf("stetclient: the body has more than %d bytes, and must be held in memory; see Options.MaxBody", limit)
	}
	b.first, b.once = rest{io.MultiReader(bytes.NewReader(read), req.Body), req.Body}, true
	return nil
}

// rest is a body of which some was read ahead.
type rest struct {
	io.Reader
	io.Closer
}

// open returns the body for an attempt. A nil body is none.
func (b *body) open() (io.ReadCloser, error) {
	switch {
	case b.held && len(b.bytes) == 0:
		return nil, nil //nolint:nilnil // no body, and nothing wrong
	case b.held:
		return io.NopCloser(bytes.NewReader(b.bytes)), nil
	case b.first != nil:
		first := b.first
		b.first = nil
		return first, nil
	case b.once:
		return nil, errBodyUsed
	default:
		return b.get()
	}
}

var errBodyUsed = errors.New("the body was sent before and is not in memory")

// close releases a body that is not going to be sent.
func (b *body) close() {
	if b.first != nil {
		_ = b.first.Close() // nothing was to be written
		b.first = nil
	}
}

// opaque is an empty body that net/http takes for one that it cannot send
// again.
type opaque struct{}

func (opaque) Read([]byte) (int, error) { return 0, io.EOF }
func (opaque) Close() error             { return nil }

// readUpTo reads into b until EOF, when whole is true, or more than limit bytes.
func readUpTo(b []byte, r io.Reader, limit int) (read []byte, whole bool, err error) {
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):min(cap(b), limit+1)])
		b = b[:len(b)+n]
		switch {
		case errors.Is(err, io.EOF):
			return b, true, nil
		case err != nil:
			return b, false, err
		case len(b) > limit:
			return b, false, nil
		}
	}
}

// reply is a response's body in memory.
type reply struct{ bytes.Reader }

// Close releases the bytes.
func (r *reply) Close() error {
	r.Reset(nil)
	return nil
}

// stream is a response's body of which some was read ahead.
type stream struct {
	c      *call
	ahead  []byte
	rest   io.ReadCloser
	cancel context.CancelCauseFunc // of the attempt; may be nil
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if len(s.ahead) > 0 {
		n := copy(p, s.ahead)
		s.ahead = s.ahead[n:]
		return n, nil
	}
	n, err := s.rest.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &Error{Reason: ReasonTruncated, Info: s.c.info(), Cause: err}
	}
	return n, err
}

// Close implements io.Closer.
func (s *stream) Close() error {
	err := s.rest.Close()
	if s.cancel != nil {
		s.cancel(nil)
	}
	return err
}

// buffers reports whether a response is read before it is returned, and how much of it.
func (o *Options) buffers(res *http.Response) (limit int, yes bool) {
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		return 0, false
	case res.StatusCode >= 400:
		return max(o.MaxResponse, maxProblem), true
	case o.MaxResponse < 0 || strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"):
		return 0, false
	default:
		return o.MaxResponse, true
	}
}
