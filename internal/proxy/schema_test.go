package proxy_test

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
)

func TestSchemaHasTheTypesAndTheCommentsOfTheReference(t *testing.T) {
	text, missing := schemaOf(proxy.Reference)
	for _, path := range missing {
		t.Errorf("reference.yaml says nothing of %s: write a comment before or behind it", path)
	}
	if *stettest.Update {
		if err := os.WriteFile("schema.json", text, 0o644); err != nil { //nolint:gosec // everybody may read it
			t.Fatal(err)
		}
		return
	}
	if string(text) != proxy.Schema {
		t.Error("schema.json is not what Config and reference.yaml say: go test ./internal/proxy -run Schema -update")
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(proxy.Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON is what YAML says, as JSON has it.
func asJSON(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestSchemaAcceptsTheReferenceAndTheFilesThatParseAccepts(t *testing.T) {
	s := compiled(t)
	for _, text := range []string{
		proxy.Reference, "store: postgres://h/d\n", "store: {url: memory, sweep_every: never}\n", "scope: [host, 'header:X-A', {jwt: {claim: sub}}]\n",
		"scope: 'host, basic'\n", "drain: ${DRAIN}\n", "limits:\n  memory: 1048576\n  waiters: ${N}\n", "trust_forwarded: ${YES:-true}\n",
		"routes: [{path: /a, verify: {url: /v, after: 0s}, max_body: 2MiB, lease: 1h30m, retention: {result: 30d}}]\n",
	} {
		if err := s.Validate(asJSON(t, text)); err != nil {
			t.Errorf("%.60q: %v", text, err)
		}
		vars := func(name string) (string, bool) {
			return map[string]string{"DRAIN": "3s", "N": "7", "YES": "true"}[name], true
		}
		if _, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(text)), vars); err != nil {
			t.Errorf("Parse does not take %.60q: %v", text, err)
		}
	}
}

func TestSchemaRefusesTheFilesThatParseRefuses(t *testing.T) {
	s := compiled(t)
	for _, text := range []string{
		"listn: :80\n", "routes: [{path: /a, leese: 3s}]\n", "routes: [{lease: 3s}]\n", "store: {shema: a}\n", "store: [a]\n", "drain: soon\n", "drain: 3\n",
		"limits: {memory: 1MB}\n", "limits: {waiters: -1}\n", "trust_forwarded: 3\n", "scope: everybody\n", "scope: {jwt: {claims: a}}\n", "scope: [[host]]\n",
		"upstream: http://127.0.0.1\n", "routes: [{path: /a, stale: retry}]\n", "routes: [{path: /a, unknown: [soon]}]\n", "unrouted: maybe\n",
		"routes: [{path: /a, key_policy: {min_length: long}}]\n",
	} {
		if err := s.Validate(asJSON(t, text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// What the schema offers as words of a field is what Check takes.
func TestEnumsOfTheSchemaAreThoseOfCheck(t *testing.T) {
	seen := 0
	look := func(typ reflect.Type, before, after string) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			name := f.Tag.Get("yaml")
			if words := strings.Fields(f.Tag.Get("oneof")); len(words) > 0 {
				seen++
				for _, word := range append(words, "nonsense") {
					_, err := parse(t, before+name+": "+word+after, nil)
					said := err != nil && regexp.MustCompile(`"`+word+`" is (neither|none of)`).MatchString(err.Error())
					if said == (word != "nonsense") {
						t.Errorf("%s: %v", before+name+": "+word+after, err)
					}
				}
			}
		}
	}
	look(reflect.TypeFor[proxy.Config](), head, "\n")
	look(reflect.TypeFor[proxy.Upstream](), "upstream: {url: 'http://127.0.0.1:1', ", "}\n")
	look(reflect.TypeFor[proxy.Route](), head+"routes: [{path: /a, ", "}]\n")
	look(reflect.TypeFor[proxy.Verify](), head+"routes: [{path: /a, verify: {url: /v, ", "}}]\n")
	look(reflect.TypeFor[proxy.Target](), head+"relay: {targets: [{by: 'http://127.0.0.1:1', ", "}]}\n")
	look(reflect.TypeFor[proxy.AdminToken](), head+"admin: {tokens: [{name: a, token: sixteen-bytes-or-more, ", "}]}\n")
	if seen < 9 {
		t.Errorf("%d fields have words", seen)
	}
}
