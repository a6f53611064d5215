// Package coding uses codecs of package codec as the engine and the adapters do: JSON for what
// a codec does not support, and errors for panics.
package coding

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/store"
)

// Encode returns the bytes of v and their media type.
func Encode(c codec.Values, v any) (mediaType string, body []byte, err error) {
	defer guard(&err)
	if mediaType, body, err = c.Encode(v); errors.Is(err, codec.ErrUnsupported) {
		mediaType, body, err = codec.JSON().Encode(v)
	}
	switch {
	case err != nil:
		return "", nil, err
	case mediaType == "":
		return "", nil, fmt.Errorf("the codec %T gave the result no media type", c)
	}
	return mediaType, body, nil
}

// DecodeJSON stores JSON in v, as codec.JSON does.
func DecodeJSON(body []byte, v any) error { return codec.JSON().Decode("application/json", body, v) }

// Decode stores in v what the bytes are.
func Decode(c codec.Values, mediaType string, body []byte, v any) (err error) {
	defer guard(&err)
	if err = c.Decode(mediaType, body, v); errors.Is(err, codec.ErrUnsupported) {
		return codec.JSON().Decode(mediaType, body, v)
	}
	return err
}

func guard(err *error) {
	if value := recover(); value != nil {
		*err = fmt.Errorf("the codec panicked: %v", value)
	}
}

// errorField names the trailer field with what a codec has kept of an error: the form, and
// the data. A colon is in no name of HTTP's, so it is never sent.
const errorField = ":error"

// ErrorField returns the trailer fields with what c keeps of an error; none if that is the
// text alone. c may be nil.
func ErrorField(c codec.Errors, err error) (fields []store.Field) {
	if c == nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			fields = nil
		}
	}()
	form, data := c.Encode(err)
	if form == "" {
		return nil
	}
	return []store.Field{{Name: errorField, Values: []string{form, string(data)}}}
}

// Error returns the error that was stored as a text and these trailer fields. c may be nil.
func Error(c codec.Errors, text string, trailer []store.Field) (err error) {
	defer func() {
		if recover() != nil || err == nil {
			err = errors.New(text)
		}
	}()
	for _, f := range trailer {
		if c != nil && f.Name == errorField && len(f.Values) == 2 {
			err = c.Decode(text, f.Values[0], []byte(f.Values[1]))
		}
	}
	if err != nil && err.Error() != text {
		err = &storedError{text, err}
	}
	return err
}

// storedError is a decoded error with its stored text.
type storedError struct {
	text string
	error
}

func (w *storedError) Error() string { return w.text }
func (w *storedError) Unwrap() error { return w.error }

// joinedForm is that of codec.JoinErrors: a list of forms with their data.
const joinedForm = "application/vnd.stet.joined-errors+json"

// Kept returns what a codec has kept of an error in that form, for adapters that read the
// error of another. ok is false if there is nothing.
func Kept(trailer []store.Field, form string) (data []byte, ok bool) {
	for _, f := range trailer {
		if f.Name != errorField || len(f.Values) != 2 {
			continue
		}
		if f.Values[0] == form {
			return []byte(f.Values[1]), true
		}
		var parts []struct {
			Form string
			Data []byte
		}
		if f.Values[0] != joinedForm || json.Unmarshal([]byte(f.Values[1]), &parts) != nil {
			return nil, false
		}
		for _, p := range parts {
			if p.Form == form {
				return p.Data, true
			}
		}
	}
	return nil, false
}

// Bare returns trailer fields without what a codec has kept of an error.
func Bare(trailer []store.Field) (rest []store.Field) {
	for _, f := range trailer {
		if f.Name != errorField {
			rest = append(rest, f)
		}
	}
	return rest
}
