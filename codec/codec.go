// Package codec encodes the values and errors that the functions of stet.Do, steps and
// workers return. By default values are stored as JSON, and errors as their text. An engine
// with other codecs:
//
//	errs, err := codec.NewErrors(
//		codec.Sentinel("out-of-stock", shop.ErrOutOfStock),
//		codec.ErrorType[*shop.DeclinedError]("declined"),
//	)
//	...
//	engine, err := stet.New(store, stet.Options{Policy: stet.Policy{
//		Values: protobuf.Values(), // of package codec/protobuf; codec.Gob(), or your own
//		Errors: errs,
//	}})
//
// stet.Do(ctx, engine, op, order) then returns an error for which
// errors.Is(err, shop.ErrOutOfStock) is true, or errors.As finds the *shop.DeclinedError,
// each time it is called: when order runs, and when a retry gets its outcome, in this
// process or in another.
//
// A stored value has a media type, which selects its decoding. A record from before a change
// of the codec can be read if the new codec supports its media type, or if it is JSON. A value
// that no codec supports is not decoded, and the operation does not run again: the error is of
// kind stet.KindForeign and says "executed".
package codec

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"reflect"
	"strings"
)

// Values encodes and decodes values. It must be safe for concurrent use. An engine uses JSON
// for values that it does not support. A panic counts as an error.
type Values interface {
	// Encode returns the bytes of v and their media type, with parameters if the bytes
	// need them to be read, and not "". The error is ErrUnsupported, or wraps it, for values
	// that another codec is to encode. After another error the operation has been executed,
	// and has no result: callers get an error of kind stet.KindExpired.
	Encode(v any) (mediaType string, body []byte, err error)
	// Decode stores in v, a pointer to the zero value of a type, what Encode has made bytes
	// of. The error is ErrUnsupported, or wraps it, where it does not know the media type, or
	// does not make values of v's type of it. After any error the operation does not run again.
	Decode(mediaType string, body []byte, v any) error
}

// ErrUnsupported says that a value, or a media type, is for another codec.
var ErrUnsupported = errors.New("codec: not of this codec")

const jsonType = "application/json"

// JSON returns the codec of package encoding/json. It is the default. A number behind an
// interface, as in map[string]any, comes back as a json.Number, which loses no digit.
//
// It does not store unexported fields and the types of interface values: a replay lacks them.
func JSON() Values { return jsonValues{} }

type jsonValues struct{}

func (jsonValues) Encode(v any) (string, []byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", nil, fmt.Errorf("the result is not JSON: %w", err)
	}
	return jsonType, b, nil
}

func (jsonValues) Decode(mediaType string, body []byte, v any) error {
	if !isJSON(mediaType) {
		return ErrUnsupported
	}
	return decodeJSON(body, v)
}

// decodeJSON is json.Unmarshal, but that a number behind an interface becomes a json.Number: as a
// float64, 9007199254740993 would be another number.
func decodeJSON(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return json.Unmarshal(body, v) // which says where the text ends
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return json.Unmarshal(body, v) // for its error about trailing data
	}
	return nil
}

// isJSON reports whether content of this type is JSON. That of no type is taken for it.
func isJSON(contentType string) bool {
	if contentType == "" || contentType == jsonType {
		return true
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && (mediaType == jsonType || strings.HasSuffix(mediaType, "+json"))
}

const gobType = "application/x-gob"

// Gob returns the codec of package encoding/gob. It distinguishes types that JSON does not, such as
// int64 and float64 in a field of type any, if they are registered with gob. The type argument of
// stet.Do must not be an interface, because gob could not decode it. A nil pointer is stored as JSON.
func Gob() Values { return gobValues{} }

type gobValues struct{}

func (gobValues) Encode(v any) (string, []byte, error) {
	if rv := reflect.ValueOf(v); !rv.IsValid() || rv.Kind() == reflect.Pointer && rv.IsNil() {
		return "", nil, ErrUnsupported
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return "", nil, err
	}
	return gobType, b.Bytes(), nil
}

func (gobValues) Decode(mediaType string, body []byte, v any) error {
	if mediaType != gobType {
		return ErrUnsupported
	}
	return gob.NewDecoder(bytes.NewReader(body)).Decode(v)
}

// First returns a codec that encodes each value, and decodes each media type, with the first
// of cs that supports it.
func First(cs ...Values) Values { return first(cs) }

type first []Values

func (f first) Encode(v any) (mediaType string, body []byte, err error) {
	for _, c := range f {
		if mediaType, body, err = c.Encode(v); !errors.Is(err, ErrUnsupported) {
			return mediaType, body, err
		}
	}
	return "", nil, ErrUnsupported
}

func (f first) Decode(mediaType string, body []byte, v any) error {
	for _, c := range f {
		if err := c.Decode(mediaType, body, v); !errors.Is(err, ErrUnsupported) {
			return err
		}
	}
	return ErrUnsupported
}
