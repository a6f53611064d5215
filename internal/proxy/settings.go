package proxy

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Setting is a field that a flag can set.
type Setting struct {
	Path string // "listen", "store.schema", "routes"
	Flag string // FlagName of it
	Bool bool   // it is true or false
}

// Settings returns the fields that Set can set. Tokens are excluded, because other users of the
// host can see a command line.
func Settings() []Setting { return settings(reflect.TypeFor[Config](), "") }

func settings(typ reflect.Type, prefix string) (all []Setting) {
	for f := range tagged(typ) {
		path := prefix + f.Tag.Get("yaml")
		switch {
		case f.Tag.Get("flag") == "-":
		case isSection(f.Type):
			all = append(all, settings(f.Type, path+".")...)
		default:
			all = append(all, Setting{path, FlagName(path), f.Type.Kind() == reflect.Bool})
		}
	}
	return all
}

// tagged returns the fields of a struct, or of a pointer to a struct, that a file can have.
func tagged(typ reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if name := f.Tag.Get("yaml"); name != "" && name != "-" && !yield(f) {
				return
			}
		}
	}
}

// checkFields returns an error for each field of a struct whose value is not among the words
// in its tag "oneof", and for each number below zero.
func checkFields(v reflect.Value) error {
	var errs []error
	v = reflect.Indirect(v)
	switch {
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			errs = append(errs, under(checkFields(v.Index(i)), i))
		}
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[Delay]():
		for f := range tagged(v.Type()) {
			value, words := v.FieldByIndex(f.Index), strings.Fields(f.Tag.Get("oneof"))
			switch {
			case f.Type.Kind() == reflect.Int && value.Int() < 0:
				errs = append(errs, at(f.Tag.Get("yaml"), "%d is negative", value.Int()))
			case len(words) > 0 && value.String() != "" && !slices.Contains(words, value.String()):
				last := len(words) - 1
				errs = append(errs, at(f.Tag.Get("yaml"), "%q is none of %s and %s", value.String(), strings.Join(words[:last], ", "), words[last]))
			default:
				errs = append(errs, under(checkFields(value), f.Tag.Get("yaml")))
			}
		}
	}
	return errors.Join(errs...)
}

// isSection reports whether a field is a mapping whose fields have paths of their own.
func isSection(typ reflect.Type) bool {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[Scope]() {
		return false
	}
	for range tagged(typ) {
		return true
	}
	return false
}

// Set sets the field at a path, one of Settings, to a value in the form of the file: lists,
// mappings and scopes in YAML ("[{path: /payments, lease: 10s}]"). It replaces no variables. It
// has precedence over the file. Errors of Check call the field by its flag, FlagName.
func (c *Config) Set(path, value string) error {
	if !settable(path) {
		return fmt.Errorf("%s is no field that can be set so", path)
	}
	if err := decode(value, fieldAt(reflect.ValueOf(c), path)); err != nil {
		return plainError(err, "")
	}
	if c.flags == nil {
		c.flags = map[string]bool{}
	}
	c.flags[path] = true
	return nil
}

// fieldAt returns the field at a path. It adds missing sections if v is a pointer.
func fieldAt(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		for v.Kind() == reflect.Pointer {
			if v.IsNil() && v.CanSet() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		for f := range tagged(v.Type()) {
			if f.Tag.Get("yaml") == name {
				v = v.FieldByIndex(f.Index)
				break
			}
		}
	}
	return v
}

func settable(path string) bool {
	return slices.ContainsFunc(Settings(), func(s Setting) bool { return s.Path == path })
}

// decode reads a value into a field.
func decode(value string, v reflect.Value) error {
	if v.Kind() == reflect.String {
		v.SetString(value)
		return nil
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Pointer || v.Type() == reflect.TypeFor[Scope]() {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(value), &doc); err != nil {
			return err
		}
		if len(doc.Content) == 0 {
			return errors.New("empty")
		}
		n = doc.Content[0]
		p := parser{}
		if p.fields(n, v.Type(), ""); len(p.errs) > 0 {
			return errors.Join(p.errs...)
		}
	}
	fresh := reflect.New(v.Type()) // the old value is not merged
	if err := n.Decode(fresh.Interface()); err != nil {
		return err
	}
	v.Set(fresh.Elem())
	return nil
}

// FlagName is the flag for the field at a path: "--store-schema" for "store.schema".
func FlagName(path string) string {
	switch path {
	case "store.url":
		return "--store"
	case "upstream.url":
		return "--upstream"
	}
	return "--" + strings.NewReplacer(".", "-", "_", "-").Replace(path)
}

// byFlag returns the flag that has set the field at path, or that would set a field missing in a
// section that flags have made; "" if there is none. rest is the rest of the path.
func (c *Config) byFlag(path []any) (flag, rest string) {
	n, set := c.root, slices.Collect(maps.Keys(c.flags))
	for i := range path {
		name := joined(path[:i+1])
		if c.flags[name] {
			return FlagName(name), strings.TrimPrefix(strings.TrimPrefix(joined(path), name), ".")
		}
		step, _ := path[i].(string)
		if n = field(n, step); n == nil && settable(joined(path)) && slices.ContainsFunc(set, func(p string) bool { return strings.HasPrefix(p, name+".") }) {
			return FlagName(joined(path)), ""
		}
	}
	return "", ""
}

// joined writes a path as errors show it.
func joined(path []any) string {
	var b strings.Builder
	for _, step := range path {
		switch step := step.(type) {
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		}
	}
	return b.String()
}
