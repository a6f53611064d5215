package stethttp

import (
	"bytes"
	"io"
	"log/slog"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// maxParts bounds the parts of a multipart body that are hashed one by one; a
// body with more is hashed unchanged.
const maxParts = 1024

// overrideHeaders change the method of a POST on some servers.
var overrideHeaders = [...]string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// digest makes the operation's fingerprint. It is false if the request was refused.
func (c *call) digest(body []byte) bool {
	own := c.m.o.Fingerprint
	if own == nil {
		c.op.Fingerprint = c.m.fingerprint(c.r, body)
		return true
	}
	var err error
	switch c.op.Fingerprint, err = own(c.r, body[:len(body):len(body)]); {
	case err != nil:
		c.m.log().WarnContext(c.r.Context(), "stethttp: Options.Fingerprint failed; nothing was executed", slog.Any("error", err))
		c.m.refuse(c.w, &bodyMisfit, "", 0)
	case c.op.Fingerprint == (store.Fingerprint{}):
		c.m.log().ErrorContext(c.r.Context(), "stethttp: Options.Fingerprint returned the zero Fingerprint, so requests could not be distinguished; nothing was executed")
		c.m.refuse(c.w, &misconfigured, "", 0)
	default:
		return true
	}
	return false
}

// fingerprint digests the method, the headers that override it, the request target as it was
// sent, content type, content coding and body.
func (m *Middleware) fingerprint(r *http.Request, body []byte) store.Fingerprint {
	contentType := comparedType(strings.Join(r.Header["Content-Type"], ", "))
	coding := strings.Join(r.Header["Content-Encoding"], ", ")
	body = comparedBody(coding, body)
	canonicalized := false
	if len(body) > 0 && (m.o.Canonicalize != nil || isMultipart(contentType)) {
		mediaType, params, err := mime.ParseMediaType(contentType)
		if err != nil {
			mediaType, params = "", nil
		}
		if strings.HasPrefix(mediaType, "multipart/") {
			if parts, ok := splitParts(params["boundary"], body); ok {
				delete(params, "boundary")
				head := [][]byte{
					[]byte(r.Method), append(appendFields(nil, r.Header, overrideHeaders[:]), target(r)...),
					[]byte(mime.FormatMediaType(mediaType, params)), []byte(coding),
				}
				return stet.NewFingerprint(append(append(head, []byte("multipart")), parts...)...)
			}
		}
		if m.o.Canonicalize != nil {
			if canonical, err := m.o.Canonicalize(mediaType, body); err == nil {
				canonicalized, body = true, canonical
			}
		}
	}
	parts := [][]byte{[]byte(r.Method), append(appendFields(nil, r.Header, overrideHeaders[:]), target(r)...), []byte(contentType), []byte(coding), body}
	if canonicalized {
		return store.NewCanonicalFingerprint(parts...)
	}
	return stet.NewFingerprint(parts...)
}

// utf8Type is the content type of a format that is UTF-8 also without its charset: JSON
// (RFC 8259, section 8.1) and forms.
var utf8Type = regexp.MustCompile(`(?i)^(application/(?:json|x-www-form-urlencoded|[^ \t;,"]+\+json))[ \t]*;[ \t]*charset="?utf-8"?[ \t]*$`)

// comparedType returns the form of a content type that is compared: without a charset that is
// the default.
func comparedType(contentType string) string {
	if strings.IndexByte(contentType, ';') < 0 {
		return contentType
	}
	if m := utf8Type.FindStringSubmatch(contentType); m != nil {
		return m[1]
	}
	return contentType
}

// comparedBody returns the form of a body that is compared: a gzip header without its time
// (RFC 1952, section 2.3.1, MTIME), which differs between two attempts.
func comparedBody(coding string, body []byte) []byte {
	if !strings.EqualFold(coding, "gzip") || len(body) < 10 || body[0] != 0x1f || body[1] != 0x8b {
		return body
	}
	body = bytes.Clone(body)
	clear(body[4:8])
	return body
}

// target returns the request target as it was sent. Middleware that strips a
// prefix or rewrites the path does not change it.
func target(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") {
		return r.RequestURI
	}
	if _, rest, ok := strings.Cut(r.RequestURI, "://"); ok { // sent in absolute form
		if i := strings.IndexAny(rest, "/?"); i >= 0 {
			return rest[i:]
		}
		return "/"
	}
	return r.URL.RequestURI() // not sent to a server
}

// appendFields appends the fields with these names, each with a line feed, which no field has.
func appendFields(b []byte, h map[string][]string, names []string) []byte {
	for _, name := range names {
		for _, v := range h[name] {
			b = append(b, name...)
			b = append(b, ':')
			b = append(b, v...)
			b = append(b, '\n')
		}
	}
	return b
}

func isMultipart(contentType string) bool {
	const prefix = "multipart/"
	return len(contentType) > len(prefix) && strings.EqualFold(contentType[:len(prefix)], prefix)
}

// splitParts returns the parts of a multipart body, each as its header and its
// content, so that the random boundary does not matter. It is false for a body
// that is not well-formed or has too many parts.
func splitParts(boundary string, body []byte) ([][]byte, bool) {
	if boundary == "" {
		return nil, false
	}
	var parts [][]byte
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for len(parts) < 2*maxParts {
		part, err := reader.NextRawPart()
		if err == io.EOF { //nolint:errorlint // wrapped, it would be a body that ends early
			return parts, true
		}
		if err != nil {
			return nil, false
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, false
		}
		parts = append(parts, appendFields(nil, part.Header, slices.Sorted(maps.Keys(part.Header))), content)
	}
	return nil, false
}
