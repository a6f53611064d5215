package proxy

import (
	"cmp"
	_ "embed" // the reference and the schema
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reference is a configuration with every field, explained.
//
//go:embed reference.yaml
var Reference string

// maxConfig bounds a configuration, in bytes.
const maxConfig = 1 << 20

// Parse reads a configuration. name is the file's, for errors, which also have the line. Unknown
// fields, values of another type, invalid durations and sizes, and variables that are not set are
// errors. Check finds all others.
//
// ${NAME} in a value is replaced by an environment variable, from lookup (os.LookupEnv);
// ${NAME:-text} by text if the variable is not set or empty; $$ by a dollar sign. Errors never
// show the value of a variable.
func Parse(name string, r io.Reader, lookup func(string) (string, bool)) (*Config, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(text) > maxConfig {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, maxConfig)
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("%s: empty; is it being written?", name)
	}
	c := &Config{name: name}
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return c, nil
	} else if err != nil {
		return nil, c.explain(err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document (---); write one", name)
	}
	c.root = doc.Content[0]
	p := parser{lookup: lookup}
	p.substitute(c.root)
	p.fields(c.root, reflect.TypeFor[Config](), "")
	c.secrets = p.secrets
	if len(p.errs) > 0 {
		return nil, c.explain(errors.Join(p.errs...))
	}
	if err := c.root.Decode(c); err != nil {
		return nil, c.hide(c.explain(err))
	}
	return c, nil
}

var lineNumber = regexp.MustCompile(`(?m)^(?:yaml: )?(?:unmarshal errors:\n)?\s*line (\d+): `)

// explain puts the file's name before each line of an error.
func (c *Config) explain(err error) error {
	if !lineNumber.MatchString(err.Error()) {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return plainError(err, c.name+":$1: ")
}

// plainError replaces the line number at the begin of each line of an error, and describes types
// to a reader who knows YAML, not Go.
func plainError(err error, line string) error {
	text := lineNumber.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n"), line)
	return errors.New(goTypes.ReplaceAllStringFunc(text, plainType))
}

// goTypes matches the decoder's description of a type.
var goTypes = regexp.MustCompile("(cannot unmarshal !!\\w+(?: `[^`]*`)?) into \\S+")

func plainType(s string) string {
	before, typ, _ := strings.Cut(s, " into ")
	before = strings.NewReplacer("cannot unmarshal ", "", "!!str", "text", "!!int", "number", "!!seq", "a list", "!!map", "a mapping",
		"!!bool", "true or false", "!!float", "number", "!!null", "nothing").Replace(before)
	switch {
	case strings.HasPrefix(typ, "[]"):
		typ = "a list"
	case typ == "bool":
		typ = "true or false"
	case typ == "int":
		typ = "a whole number"
	case typ == "string":
		typ = "text"
	default:
		typ = "a mapping"
	}
	return before + " where " + typ + " belongs"
}

// parser collects errors.
type parser struct {
	lookup  func(string) (string, bool)
	secrets []string // values of variables
	errs    []error
}

func (p *parser) bad(n *yaml.Node, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("line %d: "+format, append([]any{n.Line}, args...)...))
}

var variable = regexp.MustCompile(`\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|.?)`)

// substitute replaces the variables in all values below n.
func (p *parser) substitute(n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		return // its target is somewhere else in the tree
	}
	for i, child := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 {
			p.substitute(child)
		}
	}
	if n.Kind != yaml.ScalarNode || !strings.Contains(n.Value, "$") {
		return
	}
	n.Value = variable.ReplaceAllStringFunc(n.Value, func(m string) string {
		if m == "$$" {
			return "$"
		}
		parts := variable.FindStringSubmatch(m)
		if parts[1] == "" {
			p.bad(n, "%q is no variable; write ${NAME}, or $$ for a dollar sign", m)
			return m
		}
		v, ok := p.lookup(parts[1])
		hasDefault := strings.Contains(m, ":-")
		if (!ok || v == "") && hasDefault {
			return parts[2]
		}
		if !ok {
			p.bad(n, "the variable %s is not set; set it, or write ${%s:-a default}", parts[1], parts[1])
		}
		if v != "" {
			p.secrets = append(p.secrets, v)
		}
		return v
	})
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
		n.Tag = "" // ${PORT} is a number if its value is
	}
}

// hide removes the values of variables from an error. Short values are only removed within
// quotes: a digit is in every line number.
func (c *Config) hide(err error) error {
	if len(c.secrets) == 0 {
		return err
	}
	text := err.Error()
	for _, s := range c.secrets {
		for _, quoted := range []string{strconv.Quote(s), "`" + s + "`"} {
			text = strings.ReplaceAll(text, quoted, "(the variable's value)")
		}
		if len(s) >= 6 {
			text = strings.ReplaceAll(text, s, "(the variable's value)")
		}
	}
	return errors.New(text)
}

// fields adds an error for each field that typ does not have. The decoder does so only for nodes
// that neither change nor decode themselves.
func (p *parser) fields(n *yaml.Node, typ reflect.Type, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case n.Kind == yaml.SequenceNode && typ == reflect.TypeFor[Scope](): // Scope.All
		for i, child := range n.Content {
			if target := cmp.Or(child.Alias, child); target.Kind == yaml.SequenceNode {
				p.bad(child, "a list of scopes has no list in it")
			} else {
				p.fields(target, typ, fmt.Sprintf("%s[%d]", path, i))
			}
		}
		return
	case n.Kind == yaml.SequenceNode && typ.Kind() == reflect.Slice:
		for i, child := range n.Content {
			p.fields(child, typ.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
		return
	case n.Kind != yaml.MappingNode || typ.Kind() != reflect.Struct:
		return
	}
	known := map[string]reflect.Type{}
	for f := range tagged(typ) {
		known[f.Tag.Get("yaml")] = f.Type
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			p.bad(key, "merges (<<) are not read; write the fields out, or repeat a whole value with an alias")
			continue
		}
		t, ok := known[key.Value]
		if !ok {
			p.bad(key, "%q is no field%s; there are %s", key.Value, in(path), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			continue
		}
		p.fields(value, t, strings.TrimPrefix(path+"."+key.Value, "."))
	}
}

func in(path string) string {
	if path == "" {
		return ""
	}
	return " of " + path
}

// misplaced is an error about a field. place adds its line.
type misplaced struct {
	path []any // names and indexes
	err  error
}

func (m *misplaced) Error() string { return m.err.Error() }
func (m *misplaced) Unwrap() error { return m.err }

func at(field, format string, args ...any) error {
	return &misplaced{path: []any{field}, err: fmt.Errorf(format, args...)}
}

// under places errors, which can be joined, below a path.
func under(err error, path ...any) error {
	var errs []error
	for _, err := range split(err) {
		if m, ok := errors.AsType[*misplaced](err); ok {
			errs = append(errs, &misplaced{slices.Concat(path, m.path), m.err})
		} else {
			errs = append(errs, &misplaced{path, err})
		}
	}
	return errors.Join(errs...)
}

// place adds the file's name, the line and the path to an error about the field at path, or below
// it.
func (c *Config) place(err error, path ...any) error {
	if m, ok := errors.AsType[*misplaced](err); ok {
		path, err = append(path, m.path...), m.err
	}
	if flag, rest := c.byFlag(path); flag != "" {
		return fmt.Errorf("%s: %w", strings.TrimSuffix(flag+": "+rest, ": "), err)
	}
	n, name := c.root, ""
	for _, step := range path {
		var child *yaml.Node
		switch step := step.(type) {
		case string:
			if n != nil && n != c.root && n.Kind == yaml.ScalarNode {
				continue // one word stands for a mapping
			}
			name = strings.TrimPrefix(name+"."+step, ".")
			child = field(n, step)
		case int:
			name += fmt.Sprintf("[%d]", step)
			if n != nil && n.Kind == yaml.SequenceNode && step < len(n.Content) {
				child = n.Content[step]
			}
		}
		if child != nil {
			n = child
		}
	}
	switch {
	case n == nil && name == "":
		return err
	case n == nil:
		return fmt.Errorf("%s: %w", name, err)
	case name == "":
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return fmt.Errorf("%s:%d: %s: %w", c.name, n.Line, name, err)
}

// field returns the value of a mapping's field, nil if there is none.
func field(n *yaml.Node, name string) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// Schema is the JSON schema of a configuration, for editors: the input of Parse, with the
// texts of Reference. Check knows more.
//
//go:embed schema.json
var Schema string
