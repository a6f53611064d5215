// Package canonical brings request bodies into a form in which two ways of
// writing the same request are the same bytes, for fingerprints. It is opt-in:
// by default stet compares raw bytes, which is what a careful client sends
// again anyway.
package canonical

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
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
	excluded := make(map[jsontext.Pointer]bool, len(exclude))
	for _, s := range exclude {
		p := jsontext.Pointer(s)
		if s == "" || !p.IsValid() {
			return nil, fmt.Errorf("canonical: %q is not a JSON pointer to a part of a body; write it as \"/member/0\" (RFC 6901)", s)
		}
		excluded[p] = true
	}
	return func(mediaType string, body []byte) ([]byte, error) {
		if !isJSON(mediaType) {
			return body, nil
		}
		v := jsontext.Value(bytes.Clone(body))
		if len(excluded) > 0 {
			var err error
			if v, err = without(body, excluded); err != nil {
				return body, nil //nolint:nilerr // raw bytes are the answer
			}
		}
		if err := v.Format(jsontext.ReorderRawObjects(true)); err != nil {
			return body, nil //nolint:nilerr // raw bytes are the answer
		}
		return v, nil
	}, nil
}

// isJSON reports whether a media type, with or without parameters, is JSON.
func isJSON(mediaType string) bool {
	t, _, _ := strings.Cut(mediaType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "application/json" || strings.HasSuffix(t, "+json")
}

// without returns body less the excluded values.
func without(body []byte, excluded map[jsontext.Pointer]bool) (jsontext.Value, error) {
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewReader(body))
	enc := jsontext.NewEncoder(&out)
	for {
		if skip, err := excludedNext(dec, enc, excluded); err != nil || skip {
			if err != nil {
				return nil, err
			}
			continue
		}
		var err error
		switch dec.PeekKind() {
		case '{', '}', '[', ']':
			var tok jsontext.Token
			if tok, err = dec.ReadToken(); err == nil {
				err = enc.WriteToken(tok)
			}
		default: // numbers keep their spelling only as values
			var v jsontext.Value
			if v, err = dec.ReadValue(); err == nil {
				err = enc.WriteValue(v)
			}
		}
		switch {
		case errors.Is(err, io.EOF) && dec.StackDepth() == 0:
			return out.Bytes(), nil
		case err != nil:
			return nil, err
		case dec.StackDepth() == 0:
			// One text only; what follows must be the end.
			if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
				return nil, errors.New("more than one JSON text")
			}
			return out.Bytes(), nil
		}
	}
}

// excludedNext leaves out the next member or element if it is excluded.
func excludedNext(dec *jsontext.Decoder, enc *jsontext.Encoder, excluded map[jsontext.Pointer]bool) (bool, error) {
	switch dec.PeekKind() {
	case 0, '}', ']':
		return false, nil
	}
	kind, n := dec.StackIndex(dec.StackDepth())
	switch {
	case kind == '[':
		p := parent(dec).AppendToken(fmt.Sprint(n))
		if !excluded[p] {
			return false, nil
		}
		if err := dec.SkipValue(); err != nil {
			return false, err
		}
		return true, enc.WriteToken(jsontext.Null)
	case kind == '{' && n%2 == 0: // a name comes next
		p := parent(dec)
		name, err := dec.ReadToken()
		if err != nil {
			return false, err
		}
		if excluded[p.AppendToken(name.String())] {
			return true, dec.SkipValue()
		}
		return true, enc.WriteToken(name)
	}
	return false, nil
}

// parent returns the pointer to the array or object that the decoder is in.
func parent(dec *jsontext.Decoder) jsontext.Pointer {
	p := dec.StackPointer()
	if _, n := dec.StackIndex(dec.StackDepth()); n == 0 {
		return p // nothing read inside it yet: the pointer is its own
	}
	return p.Parent()
}
