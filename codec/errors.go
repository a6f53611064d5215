package codec

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// Errors encodes errors beyond their text, and decodes them. It must be safe for concurrent
// use. If it panics, only the text is stored or returned.
//
// With it, stet.Do returns the error of Decode to its first caller as well as to retries.
type Errors interface {
	// Encode returns what to keep of err, beside its text, and a name for the form of the
	// data, such as a media type; "" if the text is all.
	Encode(err error) (form string, data []byte)
	// Decode returns an error with the text and what Encode has kept; nil if it does not know
	// the form, or cannot read the data. Its caller then gets the text alone.
	Decode(text, form string, data []byte) error
}

// ErrorKind is an error that NewErrors knows: see Sentinel and ErrorType.
type ErrorKind struct {
	name   string
	target error // of Sentinel
	wrong  string
	encode func(error) (json.RawMessage, bool)
	decode func(json.RawMessage) (error, bool)
}

// Sentinel is an error that errors.Is finds. A replay contains target itself. name represents
// it in the store: do not change it, or use it for another error.
func Sentinel(name string, target error) ErrorKind {
	k := ErrorKind{name: name, target: target}
	if target == nil {
		k.wrong = "the error is nil"
		return k
	}
	k.encode = func(err error) (json.RawMessage, bool) { return nil, errors.Is(err, target) }
	k.decode = func(json.RawMessage) (error, bool) { return target, true }
	return k
}

// ErrorType is an error type that errors.As finds. A replay contains a T decoded from JSON.
// NewErrors refuses types that JSON cannot restore: a struct must have only exported fields,
// none of an interface type, or both methods MarshalJSON and UnmarshalJSON. Give a field that
// may be lost the tag `json:"-"`. name represents T in the store: do not change it, or use it
// for another type.
func ErrorType[T error](name string) ErrorKind {
	t := reflect.TypeFor[T]()
	return ErrorKind{
		name:  name,
		wrong: lossy(t, make(map[reflect.Type]bool)),
		encode: func(err error) (json.RawMessage, bool) {
			e, ok := errors.AsType[T](err)
			if v := reflect.ValueOf(e); !ok || v.Kind() == reflect.Pointer && v.IsNil() {
				return nil, false
			}
			data, err := json.Marshal(e)
			return data, err == nil
		},
		decode: func(data json.RawMessage) (error, bool) {
			var e T
			if json.Unmarshal(data, &e) != nil {
				return nil, false
			}
			v := reflect.ValueOf(e)
			return e, v.IsValid() && (v.Kind() != reflect.Pointer || !v.IsNil())
		},
	}
}

// methods are the pairs of methods by which a type defines its JSON.
var methods = []struct{ out, in reflect.Type }{
	{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler]()},
	{reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()},
}

// has reports whether a type, or a pointer to it, has the methods of an interface.
func has(t, of reflect.Type) bool { return t.Implements(of) || reflect.PointerTo(t).Implements(of) }

// lossy says why JSON does not bring values of a type back; "" if it does.
func lossy(t reflect.Type, seen map[reflect.Type]bool) string {
	if seen[t] {
		return ""
	}
	seen[t] = true
	for _, pair := range methods {
		switch out, in := has(t, pair.out), has(t, pair.in); {
		case t.Kind() == reflect.Interface:
		case out && in:
			return ""
		case out || in:
			return fmt.Sprintf("%v has one of the methods of %v and %v, and needs both", t, pair.out, pair.in)
		}
	}
	switch t.Kind() {
	case reflect.Interface:
		return fmt.Sprintf("%v is an interface, and JSON does not store the type of its value", t)
	case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return fmt.Sprintf("JSON does not keep a %v", t)
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return lossy(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if f.Tag.Get("json") == "-" {
				continue
			}
			if !f.IsExported() && (!f.Anonymous || f.Type.Kind() != reflect.Struct) {
				return fmt.Sprintf("the field %s of %v is not exported, and JSON does not keep it: export it, or give the type MarshalJSON and UnmarshalJSON", f.Name, t)
			}
			if why := lossy(f.Type, seen); why != "" {
				return fmt.Sprintf("the field %s of %v: %s; `json:\"-\"` leaves it out", f.Name, t, why)
			}
		}
	}
	return ""
}

// NewErrors returns a codec for the errors that are given: a replay satisfies errors.Is and
// errors.As for all of them that the first error has in it, and has its text. Others
// are kept as their text. An error says which of kinds is wrong.
func NewErrors(kinds ...ErrorKind) (Errors, error) {
	r := &registry{byName: make(map[string]ErrorKind), kinds: kinds}
	for i, k := range kinds {
		_, taken := r.byName[k.name]
		switch {
		case k.encode == nil && k.wrong == "":
			return nil, fmt.Errorf("codec: NewErrors: kind %d is neither of Sentinel nor of ErrorType", i)
		case k.name == "" || taken:
			return nil, fmt.Errorf("codec: NewErrors: kind %d has the name %q, which must not be empty, and is that of one kind only", i, k.name)
		case k.wrong != "":
			return nil, fmt.Errorf("codec: NewErrors: %q: %s", k.name, k.wrong)
		}
		r.byName[k.name] = k
	}
	return r, nil
}

type registry struct {
	kinds  []ErrorKind
	byName map[string]ErrorKind
}

const registryForm = "application/vnd.stet.errors+json"

// known is the stored form of a registered error.
type known struct {
	Name string          `json:"name"`
	Data json.RawMessage `json:"data,omitempty"`
}

func (r *registry) Encode(err error) (form string, data []byte) {
	var found []known
	for _, k := range r.kinds {
		if data, ok := k.encode(err); ok {
			found = append(found, known{k.name, data})
		}
	}
	if found == nil {
		return "", nil
	}
	b, failed := json.Marshal(found)
	if failed != nil {
		return "", nil
	}
	return registryForm, b
}

func (r *registry) Decode(text, form string, data []byte) error {
	var found []known
	if form != registryForm || json.Unmarshal(data, &found) != nil {
		return nil
	}
	var of []error
	for _, f := range found {
		k, ok := r.byName[f.Name]
		if !ok { // of another version of the program
			continue
		}
		if err, ok := k.decode(f.Data); ok {
			of = append(of, err)
			if len(found) == 1 && k.target != nil && k.target.Error() == text {
				return k.target
			}
		}
	}
	if of == nil {
		return nil
	}
	return &replayed{text, of}
}

// replayed is an error that was stored.
type replayed struct {
	text string
	of   []error
}

func (r *replayed) Error() string   { return r.text }
func (r *replayed) Unwrap() []error { return r.of }

// JoinErrors returns a codec that keeps of an error what each of cs keeps: the sentinels of
// one and the gRPC status of another, for example.
func JoinErrors(cs ...Errors) Errors { return joined(cs) }

type joined []Errors

const joinedForm = "application/vnd.stet.joined-errors+json"

// part is the stored form of one codec of several.
type part struct {
	Form string `json:"form"`
	Data []byte `json:"data"`
}

func (j joined) Encode(err error) (form string, data []byte) {
	var parts []part
	for _, c := range j {
		if form, data := c.Encode(err); form != "" {
			parts = append(parts, part{form, data})
		}
	}
	switch len(parts) {
	case 0:
		return "", nil
	case 1:
		return parts[0].Form, parts[0].Data
	}
	b, failed := json.Marshal(parts)
	if failed != nil {
		return "", nil
	}
	return joinedForm, b
}

func (j joined) Decode(text, form string, data []byte) error {
	parts := []part{{form, data}}
	if form == joinedForm {
		parts = nil
		if json.Unmarshal(data, &parts) != nil {
			return nil
		}
	}
	var of []error
	for _, p := range parts {
		for _, c := range j {
			if err := c.Decode(text, p.Form, p.Data); err != nil {
				of = append(of, err)
				break
			}
		}
	}
	switch len(of) {
	case 0:
		return nil
	case 1:
		return of[0]
	}
	return &replayed{text, of}
}
