// Package protobuf is a codec of package codec for protocol buffers:
//
//	engine, err := stet.New(store, stet.Options{Policy: stet.Policy{Values: protobuf.Values()}})
//	...
//	res, err := stet.Do(ctx, engine, op, func(ctx context.Context) (*shop.Order, error) { ... })
//
// A message is stored in the binary form, and its media type says which message it is:
// "application/protobuf; proto=shop.Order". Another message is not decoded as this one: the
// error is of kind stet.KindForeign.
package protobuf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"reflect"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/stet-go/stet/codec"
)

const (
	binaryType = "application/protobuf"
	nameParam  = "proto"
)

// MediaType is the media type of messages of that name, in the binary form.
func MediaType(name protoreflect.FullName) string {
	return binaryType + "; " + nameParam + "=" + string(name)
}

// MessageName is the name of the message that content of a media type is, if it is one in
// the binary form and says its name.
func MessageName(mediaType string) (protoreflect.FullName, bool) {
	if name, ok := strings.CutPrefix(mediaType, binaryType+"; "+nameParam+"="); ok {
		return protoreflect.FullName(name), protoreflect.FullName(name).IsValid()
	}
	base, params, err := mime.ParseMediaType(mediaType)
	if err != nil || base != binaryType && base != "application/x-protobuf" {
		return "", false
	}
	name := protoreflect.FullName(params[nameParam])
	return name, name.IsValid()
}

// Values returns the codec. It is for types that are proto.Message, as *shop.Order is; a
// variable of an interface's type gets the message of that name that is linked into the
// program. Equal messages have equal bytes, as long as package proto stays the
// same. Other values, and nil, are for another codec: an engine makes JSON of them.
//
// A message is also read from JSON: protojson, as an HTTP adapter may have stored it, or what
// encoding/json has made of the message, as the default codec has. JSON with fields that
// the message does not have is refused.
func Values() codec.Values { return values{} }

type values struct{}

func (values) Encode(v any) (string, []byte, error) {
	m, ok := v.(proto.Message)
	if !ok || !m.ProtoReflect().IsValid() { // a nil pointer, which has no bytes
		return "", nil, codec.ErrUnsupported
	}
	b, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m)
	if err != nil {
		return "", nil, fmt.Errorf("the result is no valid message: %w", err)
	}
	return MediaType(m.ProtoReflect().Descriptor().FullName()), b, nil
}

func (values) Decode(mediaType string, body []byte, v any) error {
	at := reflect.ValueOf(v)
	if at.Kind() != reflect.Pointer || at.IsNil() {
		return codec.ErrUnsupported
	}
	at = at.Elem()
	name, binary := MessageName(mediaType)
	m, err := newMessage(at, v, name)
	if err != nil {
		return err
	}
	switch {
	case binary:
		if own := m.ProtoReflect().Descriptor().FullName(); own != name {
			return fmt.Errorf("the result is the message %s, and not %s", name, own)
		}
		err = proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(body, m)
	case isJSON(mediaType):
		if bytes.Equal(bytes.TrimSpace(body), []byte("null")) {
			return codec.ErrUnsupported
		}
		err = fromJSON(body, m)
	default:
		return codec.ErrUnsupported
	}
	if err == nil && any(m) != v {
		at.Set(reflect.ValueOf(m))
	}
	return err
}

// newMessage returns an empty message of the type of what v points to. It may be v itself.
func newMessage(at reflect.Value, v any, name protoreflect.FullName) (proto.Message, error) {
	switch m := at.Interface().(type) {
	case proto.Message:
		if at.Kind() == reflect.Pointer {
			return m.ProtoReflect().New().Interface(), nil
		}
	case nil:
		if at.Kind() == reflect.Interface && name != "" {
			t, err := protoregistry.GlobalTypes.FindMessageByName(name)
			if err != nil || !reflect.TypeOf(t.New().Interface()).Implements(at.Type()) {
				return nil, fmt.Errorf("the result is the message %s, which is not linked into this program as a %v", name, at.Type())
			}
			return t.New().Interface(), nil
		}
	}
	if m, ok := v.(proto.Message); ok { // Decode(new(shop.Order))
		proto.Reset(m)
		return m, nil
	}
	return nil, codec.ErrUnsupported
}

// fromJSON reads protojson, or what encoding/json makes of a message.
func fromJSON(body []byte, m proto.Message) error {
	err := protojson.UnmarshalOptions{AllowPartial: true}.Unmarshal(body, m)
	if err == nil {
		return nil
	}
	proto.Reset(m)
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if d.Decode(m) != nil || d.More() {
		return fmt.Errorf("the result is no JSON of the message %s", m.ProtoReflect().Descriptor().FullName())
	}
	return nil
}

func isJSON(mediaType string) bool {
	base, _, err := mime.ParseMediaType(mediaType)
	return mediaType == "" || err == nil && (base == "application/json" || strings.HasSuffix(base, "+json"))
}
