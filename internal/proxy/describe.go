package proxy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Harmless returns the fields of the configuration that are set, by path, for a report to others.
// It has values only of types that cannot hold a secret: numbers, times, sizes, true and false, and
// one word out of a fixed list. A text is "(set)", and a map is its size.
func (c *Config) Harmless() map[string]string {
	all := map[string]string{}
	harmless(all, "", reflect.ValueOf(c).Elem(), "")
	return all
}

func harmless(all map[string]string, path string, v reflect.Value, words string) {
	if v.IsZero() || v.Kind() == reflect.Pointer && v.IsNil() {
		return
	}
	v = reflect.Indirect(v)
	switch value := v.Interface().(type) {
	case Duration, Every:
		all[path] = fmt.Sprintf("%gs", float64(v.Int())/1e9)
		return
	case Delay:
		all[path] = value.Duration.String()
		return
	}
	switch v.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		all[path] = fmt.Sprint(v.Interface())
	case reflect.String:
		all[path] = "(set)"
		if slices.Contains(strings.Fields(words), v.String()) {
			all[path] = v.String()
		}
	case reflect.Slice:
		for i := range v.Len() {
			harmless(all, fmt.Sprintf("%s[%d]", path, i), v.Index(i), words)
		}
	case reflect.Map:
		all[path] = fmt.Sprintf("(%d)", v.Len())
	case reflect.Struct:
		for f := range tagged(v.Type()) {
			harmless(all, strings.TrimPrefix(path+"."+f.Tag.Get("yaml"), "."), v.FieldByIndex(f.Index), f.Tag.Get("oneof"))
		}
	}
}
