package proxy

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// fillAll sets every field below v, and every text to a secret.
func fillAll(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillAll(v.Elem(), depth)
	case reflect.String:
		v.SetString("pa@hunter2#w0rd@host")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(7 * time.Second))
	case reflect.Float64:
		v.SetFloat(7)
	case reflect.Slice:
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fillAll(v.Index(0), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("hunter2").Convert(v.Type().Key()), reflect.ValueOf("hunter2").Convert(v.Type().Elem()))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillAll(v.Field(i), depth)
			}
		}
	}
}

func TestHarmless_OfAConfigurationFullOfSecrets_HasNone(t *testing.T) {
	c := &Config{}
	fillAll(reflect.ValueOf(c).Elem(), 3)
	got := c.Harmless()
	for path, text := range got {
		if strings.Contains(path+text, "hunter2") || strings.Contains(text, "@") {
			t.Errorf("%s: %s", path, text)
		}
	}
	for path, want := range map[string]string{"store.url": "(set)", "drain": "7s", "drain_delay": "7s", "store.pgbouncer": "true", "relay.targets[0].headers": "(1)", "routes[0].key": "(set)", "routes[0].lease": "7s", "admin.tokens[0].token": "(set)"} {
		if got[path] != want {
			t.Errorf("%s is %q; want %q", path, got[path], want)
		}
	}
	c = &Config{Worker: "elsewhere"}
	if got := c.Harmless(); len(got) != 1 || got["worker"] != "elsewhere" {
		t.Errorf("a word of a list: %v", got)
	}
}
