package proxy_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/stet-go/stet/internal/proxy"
)

// schemaOf makes the schema of a configuration of its types, and of what the reference
// says of each field. missing are the fields of which it says nothing.
func schemaOf(reference string) (text []byte, missing []string) {
	g := &generator{said: sayings(reference)}
	root := g.object(reflect.TypeFor[proxy.Config](), "")
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["$id"] = "https://raw.githubusercontent.com/stet-go/stet/main/internal/proxy/schema.json"
	root["title"] = "The configuration of stet proxy"
	text, err := json.MarshalIndent(root, "", " ")
	if err != nil {
		panic(err)
	}
	return append(text, '\n'), g.missing
}

type object = map[string]any

type generator struct {
	said    map[string]saying
	missing []string
}

// variable is a value that has one, which may stand for a value of any type.
var variable = object{"type": "string", "pattern": `\$\{`}

// required are fields without which the mapping means nothing. upstream.url is none of
// them, as a flag may say it.
var required = map[reflect.Type][]string{
	reflect.TypeFor[proxy.Route](): {"path"}, reflect.TypeFor[proxy.Authorize](): {"url"},
	reflect.TypeFor[proxy.NewRecords](): {"total"}, reflect.TypeFor[proxy.Encryption](): {"keys"}, reflect.TypeFor[proxy.EncryptionKey](): {"name", "file"},
}

// object is the schema of a mapping.
func (g *generator) object(typ reflect.Type, path string) object {
	properties := object{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := f.Tag.Get("yaml")
		if name == "" || name == "-" {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		s := g.typed(f, at)
		said := g.saying(at)
		if said.text == "" && said.standard == nil {
			g.missing = append(g.missing, at)
		}
		text := said.text
		if said.standard != nil {
			b, _ := json.Marshal(said.standard)
			text = strings.TrimSpace(text + " (Default: " + string(b) + ")")
		}
		if kinds := f.Tag.Get("of"); kinds != "" {
			text += " (Only of " + strings.ReplaceAll(kinds, " ", " and ") + ".)"
		}
		s["description"] = text
		if said.standard != nil {
			s["default"] = said.standard
		}
		properties[name] = s
	}
	o := object{"type": "object", "properties": properties, "additionalProperties": false}
	if names := required[typ]; names != nil {
		o["required"] = names
	}
	return o
}

// saying is the text about a field, there or where the same mapping is explained.
func (g *generator) saying(path string) saying {
	for _, at := range []string{path, strings.TrimPrefix(path, "routes[]."), "routes[]." + path} {
		if said := g.said[at]; said.text != "" || said.standard != nil {
			return said
		}
	}
	return saying{}
}

// typed is the schema of a field's values.
func (g *generator) typed(f reflect.StructField, path string) object {
	if words := f.Tag.Get("oneof"); words != "" {
		return object{"anyOf": []object{{"enum": strings.Fields(words)}, variable}}
	}
	return g.value(f.Type, path)
}

const (
	durationPattern = `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^[0-9]+d$|\$\{`
	sizePattern     = `^[0-9]+ ?([KMG]iB)?$|\$\{`
)

func (g *generator) value(typ reflect.Type, path string) object {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch typ {
	case reflect.TypeFor[proxy.Duration]():
		return object{"type": "string", "pattern": durationPattern}
	case reflect.TypeFor[proxy.Every]():
		return object{"type": "string", "pattern": durationPattern + "|^never$"}
	case reflect.TypeFor[proxy.Delay]():
		return object{"anyOf": []object{{"type": "string", "pattern": durationPattern}, {"const": 0}}}
	case reflect.TypeFor[proxy.Size]():
		return object{"anyOf": []object{{"type": "integer", "minimum": 1}, {"type": "string", "pattern": sizePattern}}}
	case reflect.TypeFor[proxy.Scope]():
		one := []object{{"type": "string", "pattern": `^(authorization|basic|mtls|mtls:uri|mtls:dns|mtls:subject|host|single-tenant|header:.+)( *,.*)?$|\$\{`}, g.object(typ, path)}
		return object{"anyOf": append(slices.Clone(one), object{"type": "array", "minItems": 1, "items": object{"anyOf": one}})}
	case reflect.TypeFor[proxy.Store]():
		return object{"anyOf": []object{{"type": "string"}, g.object(typ, path)}}
	}
	switch typ.Kind() {
	case reflect.Bool:
		return object{"anyOf": []object{{"type": "boolean"}, variable}}
	case reflect.Int:
		return object{"anyOf": []object{{"type": "integer", "minimum": 0}, variable}}
	case reflect.Float64:
		return object{"anyOf": []object{{"type": "number", "minimum": 0}, variable}}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Slice:
		return object{"type": "array", "items": g.value(typ.Elem(), path+"[]")}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.value(typ.Elem(), path+".*")}
	case reflect.Struct:
		return g.object(typ, path)
	}
	panic("(*generator).value needs the JSON form of " + typ.String())
}

// saying is what the reference says of a field.
type saying struct {
	text     string
	standard any // its default; nil: not known
}

// fieldLine is a line with a field: also a commented line, for fields whose
// default cannot be written, and in an item of a list.
var fieldLine = regexp.MustCompile(`^( *)(# )?(- )?([a-z_][a-z0-9_]*):(?: +(.*))?$`)

// level is a mapping that lines are in.
type level struct {
	indent int // of its fields' names; -1: not known yet
	typ    reflect.Type
	path   string
}

// reader reads the reference: the lines of comment before a field, the text behind
// it, and what continues that on the next lines.
type reader struct {
	all     map[string]saying
	levels  []level
	before  []string // comment that no field has followed yet
	inTable bool     // of words and their meanings; the last line of before is
	last    string   // the field that the line before has, "" if it has none
	column  int      // where its comment begins
}

func sayings(reference string) map[string]saying {
	r := &reader{all: map[string]saying{}, levels: []level{{0, reflect.TypeFor[proxy.Config](), ""}}}
	for line := range strings.SplitSeq(reference, "\n") {
		if m := fieldLine.FindStringSubmatch(line); m == nil || !r.field(line, m) {
			r.comment(line)
		}
	}
	return r.all
}

// comment reads a line without a field.
func (r *reader) comment(line string) {
	comment, at := strings.TrimSpace(line), strings.Index(line, "#")
	switch {
	case !strings.HasPrefix(comment, "#"), heading.MatchString(comment):
		r.before, r.last = nil, ""
	case r.last != "" && at == r.column && at > r.levels[len(r.levels)-1].indent+2:
		s := r.all[r.last]
		s.text += " " + strings.TrimSpace(comment[1:])
		r.all[r.last] = s
	default:
		text := strings.TrimSpace(comment[1:])
		table := strings.HasPrefix(comment, "#   ")
		if table && !strings.HasPrefix(comment, "#         ") || r.inTable && !table {
			text = "\n" + text
		}
		r.before, r.inTable, r.last = append(r.before, text), table, ""
	}
}

// field reads a line with a field; false if there is no such field in this place.
func (r *reader) field(line string, m []string) bool {
	indent := len(m[1]) + len(m[3])
	for n := len(r.levels); n > 1 && (r.levels[n-1].indent > indent || r.levels[n-1].indent < 0 && indent <= r.levels[n-2].indent); n-- {
		r.levels = r.levels[:n-1]
	}
	at := &r.levels[len(r.levels)-1]
	if at.indent < 0 {
		at.indent = indent
	}
	typ := fieldType(at.typ, m[4])
	if at.indent != indent || typ == nil {
		return false
	}
	path, value, behind := strings.TrimPrefix(at.path+"."+m[4], "."), m[5], ""
	if i := strings.Index(" "+value, " # "); i >= 0 {
		value, behind = strings.TrimSpace((" " + value)[:i]), (" " + value)[i+3:]
	}
	r.last, r.column = path, len(line)-len(behind)-2
	if _, there := r.all[path]; !there {
		var s saying
		rest, ok := strings.CutPrefix(behind, "default")
		if ok && !strings.Contains(value, "${") && (rest == "" || rest[0] == ';' || rest[0] == '.') {
			s.standard, behind = plain(value), strings.TrimLeft(rest, ";. ")
		}
		s.text = strings.TrimSpace(strings.ReplaceAll(strings.Join(append(r.before, behind), " "), " \n", "\n"))
		r.all[path] = s
	}
	r.before = nil
	if inner, step := below(typ); inner != nil {
		r.levels = append(r.levels, level{-1, inner, path + step})
	}
	return true
}

// heading is a comment that is the title of several fields.
var heading = regexp.MustCompile(`^# (\w+ ){0,3}\w+:$`)

// plain is the value that YAML makes of a text.
func plain(text string) (v any) {
	if yaml.Unmarshal([]byte(text), &v) != nil {
		return nil
	}
	return v
}

// fieldType is the type of the field that has a name in files, nil if there is none.
func fieldType(typ reflect.Type, name string) reflect.Type {
	for i := range typ.NumField() {
		if typ.Field(i).Tag.Get("yaml") == name {
			return typ.Field(i).Type
		}
	}
	return nil
}

// below is the mapping that a field, or each item of it, is; nil if it is none.
func below(typ reflect.Type) (inner reflect.Type, step string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		if typ.Kind() == reflect.Slice {
			step = "[]"
		}
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[proxy.Delay]() {
		return nil, ""
	}
	return typ, step
}
