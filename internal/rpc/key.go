package rpc

import (
	"slices"
	"strings"

	"github.com/dunglas/httpsfv"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	maxKey      = 255  // bytes, without quotes, as in HTTP
	maxKeyField = 4096 // of a quoted key with its parameters
)

// misplaced are names under which keys come that belong under KeyName.
var misplaced = []string{"idempotency_key", "idempotencykey", "x-idempotency-key", "idempotency-key-bin", "grpcgateway-idempotency-key", "grpc-metadata-idempotency-key"}

// Key returns the key that request metadata has, "" for none, or why it is not one. A
// key in double quotes is a structured field string, as HTTP has it, and the same key as
// that without.
func Key(values func(name string) []string) (key string, c *Condition, detail string) {
	list := values(KeyName)
	switch {
	case len(list) == 0:
		if i := slices.IndexFunc(misplaced, func(name string) bool { return len(values(name)) > 0 }); i >= 0 {
			return "", &KeyMisplaced, "the call has metadata " + misplaced[i] + ": " + KeyMisplaced.Text
		}
		return "", nil, ""
	case len(list) > 1:
		return "", &KeyRepeated, ""
	}
	key, detail = parseKey(list[0])
	if detail != "" {
		return "", &KeyInvalid, detail
	}
	return key, nil, ""
}

func parseKey(field string) (key, flaw string) {
	key = strings.Trim(field, " \t")
	switch {
	case key == "":
		return "", "the idempotency key is empty"
	case key[0] == '"':
		item, err := httpsfv.UnmarshalItem([]string{key[:min(len(key), maxKeyField)]})
		text, ok := item.Value.(string)
		if err != nil || !ok || len(key) > maxKeyField {
			return "", "the idempotency key begins with a quote but is not a structured field string (RFC 9651)"
		}
		key = text
	case strings.Contains(key, ","):
		return "", "the idempotency key has a comma and is not in double quotes: it may be two keys that something on the way has joined"
	}
	switch {
	case key == "":
		return "", "the idempotency key is empty"
	case len(key) > maxKey:
		return "", "the idempotency key is longer than 255 bytes"
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", "the idempotency key has a byte that is not visible ASCII"
	}
	return key, ""
}

// Spelled is the sent form of a key. A key that begins with a quote or has a comma becomes a
// structured field string (RFC 9651).
func Spelled(key string) string {
	if !strings.HasPrefix(key, `"`) && !strings.Contains(key, ",") {
		return key
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// Builtin reports whether a service is health, reflection or channelz of gRPC. Their calls
// change nothing.
func Builtin(service string) bool {
	return slices.ContainsFunc([]string{"grpc.health.", "grpc.reflection.", "grpc.channelz."}, func(prefix string) bool { return strings.HasPrefix(service, prefix) })
}

// Digestible returns the bytes of a request that are the same in each retry, or says
// why there are none: a message with fields that this program does not know has them in
// the order of the client, and another version of the service, in its own.
func Digestible(m proto.Message) (b []byte, flaw string) {
	if name := unknown(m.ProtoReflect()); name != "" {
		return nil, "the request has fields in " + string(name) + " that this server does not know"
	}
	b, err := Marshal(m)
	if err != nil {
		return nil, "the request cannot be marshalled"
	}
	return b, ""
}

// unknown returns the name of the message, in m or m itself, that has unknown fields.
func unknown(m protoreflect.Message) (name protoreflect.FullName) {
	if len(m.GetUnknown()) > 0 {
		return m.Descriptor().FullName()
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					name = unknown(v.Message())
					return name == ""
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				if name = unknown(v.List().Get(i).Message()); name != "" {
					return false
				}
			}
		default:
			name = unknown(v.Message())
		}
		return name == ""
	})
	return name
}
