package stetfiber

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/stethttp"
)

// maxStream bounds a response that a handler streams, in bytes: it is read while the
// handler's run lasts, and held back until its outcome is durable.
const maxStream = 16 << 20

var errTooLong = fmt.Errorf("stetfiber: the stream of a response is longer than %d bytes, the limit of a response that is held back until its outcome is durable; "+
	"Options.Skip lets requests through that ask for longer ones", maxStream)

const defaultType = "text/plain; charset=utf-8" // of fasthttp

// fill copies the header of a response into h.
func fill(h http.Header, from *fasthttp.ResponseHeader, empty bool) {
	for name, value := range from.All() {
		name := http.CanonicalHeaderKey(string(name))
		switch {
		case name == "Content-Length", name == "Transfer-Encoding", name == "Date": // fasthttp sets them
		case name == "Content-Type" && empty && string(value) == defaultType: // the default
		default:
			h[name] = append(h[name], string(value))
		}
	}
	if !empty && h["Content-Type"] == nil {
		h["Content-Type"] = nil // so that none is guessed
	}
}

// write gives a handler's response to w. It writes nothing if the response is an empty 200,
// because that is also the state without a response.
func write(ctx context.Context, w http.ResponseWriter, resp *fasthttp.Response) error {
	body, err := content(ctx, resp)
	if err != nil {
		return err
	}
	streamed := resp.IsBodyStream()
	h := w.Header()
	clear(h)
	fill(h, &resp.Header, len(body) == 0 || bodiless(resp.StatusCode()))
	if status := resp.StatusCode(); status != http.StatusOK || streamed {
		w.WriteHeader(status)
	}
	if len(body) > 0 {
		_, _ = w.Write(body) // stethttp handles errors
	}
	return nil
}

// bodiless reports whether a response with this status has no content (RFC 9110,
// section 6.4.1).
func bodiless(status int) bool {
	return status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}

// content returns the body of a response. A stream is read to its end.
func content(ctx context.Context, resp *fasthttp.Response) ([]byte, error) {
	switch stream := resp.BodyStream(); {
	case resp.SkipBody:
		return nil, nil
	case stream == nil:
		return resp.Body(), nil
	default:
		return readStream(ctx, stream, resp.Header.ContentLength())
	}
}

// readStream reads a stream of size bytes, or to its end if size is negative. When ctx
// ends, the stream is closed, which ends what writes it.
func readStream(ctx context.Context, stream io.Reader, size int) ([]byte, error) {
	limit := int64(maxStream)
	switch {
	case size > maxStream:
		return nil, errTooLong
	case size >= 0:
		limit = int64(size)
	}
	if closer, ok := stream.(io.Closer); ok {
		stop := context.AfterFunc(ctx, func() { _ = closer.Close() })
		defer stop()
	}
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(stream, limit))
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("stetfiber: the run ended before the stream of its response: %w", context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("stetfiber: the stream of a response failed: %w", err)
	case n < int64(size):
		return nil, fmt.Errorf("stetfiber: the stream of a response ended after %d of %d bytes", n, size)
	case size < 0 && n == limit:
		if more, _ := io.ReadFull(stream, make([]byte, 1)); more > 0 {
			return nil, errTooLong
		}
	}
	return b.Bytes(), nil
}

// again responds if a handler cannot be called again. stethttp has rolled its first call back.
func again(w http.ResponseWriter) {
	problem.Write(w, http.StatusServiceUnavailable, problem.Marshal(problem.Document{
		Type: stethttp.DefaultProblemBase + "not-executed", Title: "Not executed", Status: http.StatusServiceUnavailable,
		Detail:    "The service did not complete the operation, and its writes were rolled back.",
		Retryable: true, Execution: stet.NotExecuted.String(),
	}), time.Second)
}

// writer is the http.ResponseWriter of stethttp.
type writer struct {
	header http.Header
	outer  http.Header // as it was in the beginning
	status int
	body   []byte
}

// Header implements http.ResponseWriter.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, p...)
	return len(p), nil
}

// send makes resp, which has the header as it was in the beginning, the response.
func (w *writer) send(resp *fasthttp.Response) {
	if w.status == 0 {
		w.status = http.StatusInternalServerError // stethttp always answers
	}
	h := &resp.Header
	outer := w.outer
	for name, values := range outer {
		if !slices.Equal(w.header[name], values) { // fasthttp's Del would change the order of the rest
			for name := range outer {
				h.Del(name)
			}
			outer = nil
			break
		}
	}
	trailers := false
	for _, name := range slices.Sorted(maps.Keys(w.header)) {
		if _, there := outer[name]; there || name == "Content-Length" && len(w.body) > 0 {
			continue
		}
		plain, trailer := strings.CutPrefix(name, http.TrailerPrefix)
		trailers = trailers || trailer || name == "Trailer"
		if trailer {
			_ = h.AddTrailer(plain)
		}
		for _, value := range w.header[name] {
			h.Add(plain, value)
		}
	}
	if len(w.body) > 0 && len(w.header["Content-Type"]) == 0 {
		h.SetNoDefaultContentType(true)
	}
	resp.SetStatusCode(w.status)
	if trailers {
		resp.SetBodyStream(bytes.NewReader(w.body), -1)
		return
	}
	resp.SetBodyRaw(w.body)
}
