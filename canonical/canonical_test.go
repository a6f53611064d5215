package canonical_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stet-go/stet/canonical"
)

func form(t testing.TB, body string, exclude ...string) string {
	t.Helper()
	f, err := canonical.JSON(exclude...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f("application/json; charset=utf-8", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func TestSameRequestsHaveOneForm(t *testing.T) {
	for _, c := range []struct{ a, b string }{
		{`{"a":1,"b":2}`, ` { "b" : 2 , "a" : 1 } `},
		{`{"name":"é"}`, `{"name":"\u00e9"}`},
		{`{"x":{"z":[1,2],"y":null}}`, `{"x":{"y":null,"z":[1, 2]}}`},
		{`"a\/b"`, `"a/b"`},
	} {
		if a, b := form(t, c.a), form(t, c.b); a != b {
			t.Errorf("%s and %s became %s and %s", c.a, c.b, a, b)
		}
	}
}

func TestDifferentRequestsStayDifferent(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	million := strings.Repeat("9", 1_000_000)
	for _, c := range []struct{ name, a, b string }{
		{"integers beyond 2^53", `{"amount":9007199254740993}`, `{"amount":9007199254740992}`},
		{"exponent and plain", `1e2`, `100`},
		{"integer and decimal", `100`, `100.0`},
		{"underflow and zero", `1e-400`, `0`},
		{"minus zero", `-0`, `0`},
		{"a million digits", million, million + "9"},
		{"duplicate names and the last of them", `{"amount":1,"amount":1000}`, `{"amount":1000}`},
		{"duplicate names and the first of them", `{"amount":1,"amount":1000}`, `{"amount":1}`},
		{"lone surrogate and replacement character", `"\ud800"`, `"\ufffd"`},
		{"bad UTF-8 and replacement character", "\"\xff\"", `"\ufffd"`},
		{"byte-order mark", "\ufeff{}", `{}`},
		{"two documents and one", `{} {}`, `{}`},
		{"null and missing", `{"a":null}`, `{}`},
		{"empty body and empty object", ``, `{}`},
		{"composed and decomposed", `"é"`, "\"e\u0301\""},
		{"depth 10,001 and 10,000", deep(10_001), deep(10_000)},
		{"order of elements", `[1,2]`, `[2,1]`},
		{"cut off", `{"a":1`, `{"a":1}`},
	} {
		for _, exclude := range [][]string{nil, {"/unrelated"}} {
			if a, b := form(t, c.a, exclude...), form(t, c.b, exclude...); a == b {
				t.Errorf("%s: both became %.40q (exclude %v)", c.name, a, exclude)
			}
		}
	}
}

func TestHostileNestingIsReturnedAsItCame(t *testing.T) {
	body := strings.Repeat("[", 10<<20)
	for _, exclude := range [][]string{nil, {"/0"}} {
		if form(t, body, exclude...) != body {
			t.Errorf("exclude %v: changed", exclude)
		}
	}
}

func TestExcludedValuesDoNotCount(t *testing.T) {
	for _, c := range []struct {
		exclude []string
		body    string
		want    string
	}{
		{[]string{"/sent_at"}, `{"sent_at":"12:00","amount":1}`, `{"amount":1}`},
		{[]string{"/sent_at"}, `{"amount":1}`, `{"amount":1}`},
		{[]string{"/meta/sent_at"}, `{"sent_at":1,"meta":{"sent_at":2,"x":3}}`, `{"meta":{"x":3},"sent_at":1}`},
		{[]string{"/meta"}, `{"a":1.50,"meta":{"deep":[{}]}}`, `{"a":1.50}`},
		{[]string{"/list/1"}, `{"list":[1,2,3]}`, `{"list":[1,null,3]}`},
		{[]string{"/list/0/t"}, `{"list":[{"t":1},{"t":2}]}`, `{"list":[{},{"t":2}]}`},
		{[]string{"/a~1b", "/c~0d"}, `{"a/b":1,"c~d":2,"e":3}`, `{"e":3}`},
		{[]string{"/0"}, `[[1],2]`, `[null,2]`},
		{[]string{"/0/0"}, `[[1],2]`, `[[null],2]`},
		{[]string{"/x"}, `"x"`, `"x"`},
		{[]string{"/x"}, ` 1.0 `, `1.0`},
	} {
		if got := form(t, c.body, c.exclude...); got != c.want {
			t.Errorf("%v of %s: %s, want %s", c.exclude, c.body, got, c.want)
		}
	}
}

func TestMalformedPointerIsRefused(t *testing.T) {
	for _, p := range []string{"", "a", "/~2", "#/a"} {
		if _, err := canonical.JSON(p); err == nil {
			t.Errorf("%q was accepted", p)
		}
	}
}

func TestOtherMediaTypesAreLeftAlone(t *testing.T) {
	f, _ := canonical.JSON()
	for mediaType, changed := range map[string]bool{
		"application/json": true, "Application/JSON;x=y": true, "application/vnd.api+json": true,
		"text/plain": false, "": false, "application/jsonp": false,
	} {
		got, _ := f(mediaType, []byte(`{ }`))
		if (string(got) == "{}") != changed {
			t.Errorf("%q: %s", mediaType, got)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":null}],"c":"\u00e9"}`, `{"a":1,"a":2}`, "[[[", `"\ud800"`, "1e999",
		`{"b":{"z":1,"a":[{"d":2,"c":3}]},"a":[{"y":1,"x":{"q":0,"p":0}}]}`, `{"\uffff":1,"😀":2,"é":3,"\u0000":4,"\"":5,"\\":6,"]":7,"\n":8,"":9}`} {
		f.Add([]byte(s))
	}
	plain, _ := canonical.JSON()
	less, _ := canonical.JSON("/a", "/b/0")
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		if reference := jsontext.Value(bytes.Clone(body)); reference.Format(jsontext.ReorderRawObjects(true)) == nil {
			if got, _ := plain("application/json", body); !bytes.Equal(got, reference) {
				t.Fatalf("%q became %q, want %q", body, got, reference)
			}
		}
		for _, canon := range []func(string, []byte) ([]byte, error){plain, less} {
			once, err := canon("application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(body, before) {
				t.Fatal("the body was changed in place")
			}
			twice, _ := canon("application/json", once)
			if !bytes.Equal(once, twice) {
				t.Fatalf("%q became %q, and that %q", body, once, twice)
			}
		}
	})
}

func ExampleJSON() {
	body, err := canonical.JSON("/sent_at")
	if err != nil {
		panic(err)
	}
	a, _ := body("application/json", []byte(`{"amount": 100, "to": "bob", "sent_at": "12:00:01"}`))
	b, _ := body("application/json", []byte(`{"to":"bob","amount":100,"sent_at":"12:00:09"}`))
	fmt.Printf("%s\n%v\n", a, bytes.Equal(a, b))
	// Output:
	// {"amount":100,"to":"bob"}
	// true
}
