package stethttp

import (
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

func TestKeyGrammar(t *testing.T) {
	long := func(n int) string { return strings.Repeat("k", n) }
	for _, c := range []struct {
		field        string
		lenient      string // "" is refused
		strict       bool   // accepted in strict mode too
		strictReason flaw
	}{
		{"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324", false, keyUnquoted},
		{"ae03978e-40d5-43e8-bc93-6894a57f9324", "ae03978e-40d5-43e8-bc93-6894a57f9324", false, keyUnquoted}, // a Token, not a String
		{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "8e03978e-40d5-43e8-bc93-6894a57f9324", true, ""},
		{`"a"`, "a", true, ""},
		{`"a";p=1`, "a", true, ""},
		{`"a" ;p=1`, "", false, keyQuoted},
		{`"a";p=`, "", false, keyQuoted},
		{`"a\"b\\c"`, `a"b\c`, true, ""},
		{`a"b\c`, `a"b\c`, false, keyUnquoted},
		{`"a\x"`, "", false, keyQuoted},
		{"  a\t", "a", false, keyUnquoted},
		{"a,b", "", false, keyUnquoted},
		{"a, b", "", false, keyUnquoted},
		{`"a", "b"`, "", false, keyQuoted},
		{`"a","b"`, "", false, keyQuoted},
		{"", "", false, keyEmpty},
		{" ", "", false, keyEmpty},
		{"   ", "", false, keyEmpty},
		{`""`, "", false, keyEmpty},
		{`" "`, "", false, keyByte},
		{`"a b"`, "", false, keyByte},
		{`"unterminated`, "", false, keyQuoted},
		{`"`, "", false, keyQuoted},
		{`"a"b`, "", false, keyQuoted},
		{"a\tb", "", false, keyUnquoted},
		{"\"a\tb\"", "", false, keyQuoted},
		{"a\x00b", "", false, keyUnquoted},
		{"\"a\x00b\"", "", false, keyQuoted},
		{"a\r\nb", "", false, keyUnquoted},
		{"a\x7f", "", false, keyUnquoted},
		{"\"a\x7f\"", "", false, keyQuoted},
		{"\xff\xfe", "", false, keyUnquoted},
		{"caf\u00e9", "", false, keyUnquoted},
		{"cafe\u0301", "", false, keyUnquoted},
		{"a\u200db", "", false, keyUnquoted},
		{"a\u202eb", "", false, keyUnquoted},
		{"\"caf\u00e9\"", "", false, keyQuoted},
		{`%"caf%c3%a9"`, `%"caf%c3%a9"`, false, keyUnquoted}, // a display string is not a String
		{"../", "../", false, keyUnquoted},
		{"{x}1", "{x}1", false, keyUnquoted},
		{"*", "*", false, keyUnquoted},
		{":", ":", false, keyUnquoted},
		{"%00", "%00", false, keyUnquoted},
		{long(255), long(255), false, keyUnquoted},
		{long(256), "", false, keyUnquoted},
		{long(257), "", false, keyUnquoted},
		{long(64 << 10), "", false, keyUnquoted},
		{`"` + long(255) + `"`, long(255), true, ""},
		{`"` + long(256) + `"`, "", false, keyLong},
		{`"` + long(64<<10) + `"`, "", false, keyLong},
		{`"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255), true, ""},
	} {
		name := c.field[:min(len(c.field), 40)]
		if got, flaw := parseKey(c.field, false, false); got != c.lenient || (flaw == "") != (c.lenient != "") {
			t.Errorf("lenient %q: %.60q, %q; want %.60q", name, got, flaw, c.lenient)
		}
		got, flaw := parseKey(c.field, true, false)
		if (flaw == "") != c.strict || flaw != c.strictReason || c.strict && got != c.lenient {
			t.Errorf("strict %q: %.60q, %q; want %q", name, got, flaw, c.strictReason)
		}
	}
}

func TestCaseIsFoldedOnlyWhenAskedTo(t *testing.T) {
	if key, _ := parseKey("AbC", false, false); key != "AbC" {
		t.Errorf("unfolded: %q", key)
	}
	if key, _ := parseKey(`"AbC"`, false, true); key != "abc" {
		t.Errorf("folded: %q", key)
	}
}

func FuzzKey(f *testing.F) {
	for _, seed := range []string{"a", `"a"`, `"a";p=1`, `"\"\\"`, "", `"`, "a,b", "\x00", "caf\u00e9", `"a";p="`, strings.Repeat("k", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, field string) {
		key, flaw := parseKey(field, false, false)
		if (flaw == "") == (key == "") {
			t.Fatalf("%q: key %q and flaw %q", field, key, flaw)
		}
		strictKey, strictFlaw := parseKey(field, true, false)
		if strictFlaw == "" && (flaw != "" || strictKey != key) {
			t.Fatalf("%q: strict %q, lenient %q (%s)", field, strictKey, key, flaw)
		}
		if flaw != "" {
			return
		}
		if len(key) > maxKey || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			t.Fatalf("%q: accepted %q", field, key)
		}
		quoted, err := httpsfv.Marshal(httpsfv.NewItem(key))
		if err != nil {
			t.Fatal(err)
		}
		if again, flaw := parseKey(quoted, true, false); flaw != "" || again != key {
			t.Fatalf("%q: its quoted form %q names %q (%s)", key, quoted, again, flaw)
		}
	})
}
