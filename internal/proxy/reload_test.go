package proxy

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// changeable are the fields that a reload changes. Any other field must be
// refused when its value differs.
var changeable = []string{"upstream", "drain", "trust_forwarded", "scope", "token_scope", "scope_label", "authorize", "encryption", "new_records", "reconcile", "relay", "consume", "routes", "unrouted", "drain_delay", "grace", "log.level", "log.sample",
	"replayed_header", "retry_after", "problem_base", "worker", "admin.tokens", "admin.token", "admin.token_file", "limits.waiters", "store.timeout", "store.sweep_every"}

// leaves returns the paths of all fields that are no sections.
func leaves(typ reflect.Type, prefix string) (all []string) {
	for f := range tagged(typ) {
		path := prefix + f.Tag.Get("yaml")
		if isSection(f.Type) {
			all = append(all, leaves(f.Type, path+".")...)
		} else {
			all = append(all, path)
		}
	}
	return all
}

// fill sets a value other than the zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.String:
		v.SetString("other")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
				return
			}
		}
	default:
		panic("no other value of type " + v.Type().String())
	}
}

func TestEveryFieldIsReloadedOrRefusedByItsName(t *testing.T) {
	all := leaves(reflect.TypeFor[Config](), "")
	for _, path := range all {
		after := &Config{}
		fill(fieldAt(reflect.ValueOf(after), path))
		if reflect.DeepEqual(after, &Config{}) {
			t.Fatalf("%s was not changed", path)
		}
		err := after.unchanged(&Config{})
		switch {
		case below(path, changeable) && err != nil:
			t.Errorf("%s: %v; it can change", path, err)
		case !below(path, changeable) && (err == nil || err.Error() != path+": it cannot change while the proxy runs; restart it, or set it back"):
			t.Errorf("%s: %v; is it reloaded? Then it belongs to changeable, else to fixed", path, err)
		}
		if err := after.unchanged(after); err != nil {
			t.Errorf("%s has not changed: %v", path, err)
		}
	}
	for _, path := range slices.Concat(fixed, reloadable, changeable) {
		if !slices.ContainsFunc(all, func(leaf string) bool { return below(leaf, []string{path}) }) {
			t.Errorf("there is no field %s", path)
		}
	}
}

func TestReloadNamesAllFieldsThatCannotChangeWithTheirLines(t *testing.T) {
	read := func(yaml string) *Config {
		c, err := Parse("stet.yaml", strings.NewReader(yaml), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const before = "upstream: {url: 'http://127.0.0.1:3000'}\nlisten: :80\nstore:\n  url: s.db\n  timeout: 3s\nlimits: {memory: 2MiB, waiters: 5}\n"
	after := read("upstream: {url: 'http://127.0.0.1:3001'}\nlisten: :81\nstore:\n  url: t.db\n  readers: 7\n  timeout: 4s\nlimits: {memory: 3MiB, waiters: 6}\nadmin: {audit: a}\n")
	err := after.unchanged(read(before))
	want := []string{"stet.yaml:2: listen: it cannot", "stet.yaml:8: admin.audit: it cannot", "stet.yaml:4: store.url: it cannot", "stet.yaml:5: store.readers: it cannot", "stet.yaml:7: limits.memory: it cannot"}
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is missing from %v", w, err)
		}
	}
	if n := strings.Count(err.Error(), "cannot change"); n != len(want) {
		t.Errorf("%d fields are named, want %d: %v", n, len(want), err)
	}
	// The same value in another notation is no change.
	if err := read(strings.Replace(before, "store:\n  url: s.db\n  timeout: 3s\n", "store: s.db\n", 1)).unchanged(read(before)); err != nil {
		t.Error(err)
	}
}
