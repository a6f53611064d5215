package codec

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// Errors keeps more of an error than its text, and makes an error of it again. It is used
// by several goroutines at a time. If it panics, the text alone is kept, or read.
//
// With it, stet.Do returns to its first caller what it will return to all others: the error
// that Decode makes.
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

// Sentinel is an error that is told by errors.Is. A replay has target itself. name stands
// for it in the store: it must not change, nor be given to another error.
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

// ErrorType is a type of errors that is told by errors.As. A replay has a T with the fields
// that JSON has brought back. What JSON would lose is refused by NewErrors: a struct
// has exported fields only, none of an interface's type, or both methods MarshalJSON and
// UnmarshalJSON. A field that is to be lost has the tag `json:"-"`. name stands for T in
// the store: it must not change, nor be given to another type.
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

// methods are the pairs with which a type is what it likes in JSON.
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
		return fmt.Sprintf("%v is an interface, and JSON does not keep what is in one", t)
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

// known is an error of the registry, as it is stored.
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

// part is what one of several codecs keeps, as it is stored.
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
