// Package canonical brings request bodies into a form in which two ways of
// writing the same request are the same bytes, for fingerprints. It is opt-in:
// by default stet compares raw bytes, which is what a careful client sends
// again anyway.
package canonical

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/stet-go/stet/store"
)

// JSON returns a function that brings JSON bodies (application/json and types
// that end in +json) into canonical form: members ordered as in RFC 8785, no
// white space, strings in their shortest spelling. Unlike RFC 8785 it keeps
// number literals as they were sent: as doubles, 9007199254740992 and
// 9007199254740993 would become one number, and two payments one fingerprint;
// so 100, 100.0 and 1e2 stay different.
//
// The values that the JSON pointers (RFC 6901) in exclude name are left out:
// use it for what a client changes from try to try, such as a time of sending.
// An array element is replaced by null, so that the others keep their places.
//
// A body that is not one valid JSON text (RFC 7493: no duplicate names, valid
// UTF-8, nesting up to 10,000) is returned as it came, as is a body of another
// type. The function never fails; JSON does, for a malformed pointer.
func JSON(exclude ...string) (func(mediaType string, body []byte) ([]byte, error), error) {
	excluded := &part{}
	for _, s := range exclude {
		p := jsontext.Pointer(s)
		if s == "" || !p.IsValid() {
			return nil, fmt.Errorf("canonical: %q is not a JSON pointer to a part of a body; write it as \"/member/0\" (RFC 6901)", s)
		}
		excluded.add(p)
	}
	return func(mediaType string, body []byte) ([]byte, error) {
		if !isJSON(mediaType) {
			return body, nil
		}
		v := jsontext.Value(bytes.Clone(body))
		if err := v.Format(); err != nil {
			return body, nil // raw bytes are the answer
		}
		return arrange(v, excluded), nil
	}, nil
}

// Fingerprint returns a function that computes the fingerprint of an operation, such as
// "order", from a JSON body in canonical form, independent of its media type. Use it for
// stethttp.Options.Fingerprint, stetmsg.Identity.WithFingerprint and stet.Op.Fingerprint if an
// operation can arrive by more than one of them. The values at the pointers in exclude are left
// out, as by JSON. A body that is not JSON is used unchanged. The error is that of JSON.
func Fingerprint(operation string, exclude ...string) (func(body []byte) store.Fingerprint, error) {
	form, err := JSON(exclude...)
	if err != nil {
		return nil, err
	}
	return func(body []byte) store.Fingerprint {
		b, _ := form("application/json", body) // it never fails
		return store.NewCanonicalFingerprint([]byte(operation), b)
	}, nil
}

// isJSON reports whether a media type, with or without parameters, is JSON.
func isJSON(mediaType string) bool {
	t, _, _ := strings.Cut(mediaType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "application/json" || strings.HasSuffix(t, "+json")
}
