package proxy

import (
	"reflect"
	"slices"
)

// fileFields are the names of fields with the path of a file that the configuration reads.
var fileFields = []string{"certificate", "key", "client_ca", "ca", "token_file", "file", "credentials", "jwks_file", "key_file"}

// Files returns the paths of the files that the configuration names and a reload reads again.
func (c *Config) Files() (all []string) {
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		v = reflect.Indirect(v)
		switch v.Kind() {
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Struct:
			for f := range tagged(v.Type()) {
				value := v.FieldByIndex(f.Index)
				isFile := f.Type.Kind() == reflect.String && f.Tag.Get("oneof") == "" && slices.Contains(fileFields, f.Tag.Get("yaml"))
				if isFile && value.String() != "" {
					all = append(all, value.String())
				}
				walk(value)
			}
		}
	}
	walk(reflect.ValueOf(c))
	slices.Sort(all)
	return slices.Compact(all)
}
