package mcpcall

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/stet-go/stet"
)

func TestNumbersOfOneValueAreOne(t *testing.T) {
	for _, same := range [][]string{
		{"1", "1.0", "1e0", "10e-1", "0.1E+1", "1.000e-0"},
		{"0", "-0", "0.0", "0e17", "-0.0e-5"},
		{"-100", "-1e2", "-1.00E2", "-0.1e3"},
		{"12.5", "1.25e1", "125e-1", "0.0125e3"},
		{"1e400", "10e399", "0.1e401"},
	} {
		for _, n := range same {
			if Number(n) != Number(same[0]) {
				t.Errorf("%s is %s, and %s is %s", n, Number(n), same[0], Number(same[0]))
			}
		}
	}
}

func TestNumbersOfTwoValuesStayTwo(t *testing.T) {
	seen := map[string]string{}
	for _, n := range []string{"1", "-1", "10", "0.1", "9007199254740992", "9007199254740993", "0.30000000000000001", "0.3", "1e400", "1e401",
		"1e-400", "0", "1e9999999999999999999999", "1e99999999999999999999999", "100000000000000000000000000000001", "100000000000000000000000000000000"} {
		if other, ok := seen[Number(n)]; ok {
			t.Errorf("%s and %s are both %s", n, other, Number(n))
		}
		seen[Number(n)] = n
	}
}

func FuzzNumber(f *testing.F) {
	f.Add("1.50e+3", "-0.02E-1")
	f.Fuzz(func(t *testing.T, a, b string) {
		value := func(s string) (*big.Rat, bool) {
			if !json.Valid([]byte(s)) || s == "" || s[0] != '-' && (s[0] < '0' || s[0] > '9') || strings.ContainsAny(s, " \t\r\n") {
				return nil, false
			}
			if i := strings.IndexAny(s, "eE"); i >= 0 && len(s)-i > 5 {
				return nil, false
			}
			return new(big.Rat).SetString(s)
		}
		x, ok := value(a)
		y, also := value(b)
		if !ok || !also {
			return
		}
		if (x.Cmp(y) == 0) != (Number(a) == Number(b)) {
			t.Errorf("%s is %s, %s is %s", a, Number(a), b, Number(b))
		}
		if z, _ := value(Number(a)); z != nil && z.Cmp(x) != 0 {
			t.Errorf("%s became %s", a, Number(a))
		}
	})
}

func TestArgumentsThatCanBeReadInTwoWaysAreRefused(t *testing.T) {
	for _, bad := range []string{`{"a":1,"a":1}`, `{"x":[{"a":1,"\u0061":1}]}`, "{\"a\":\"\xff\"}", `[1]`, `"a"`, `1`, `{"a":1}{}`, `{`, `{"a":01}`, `{"a":"\ud800"}`} {
		if got, err := Arguments([]byte(bad)); err == nil {
			t.Errorf("%s became %s", bad, got)
		}
	}
	for raw, want := range map[string]string{
		"": "{}", " null ": "{}", "{ }": "{}",
		`{"b":[1.0,"1.0",{"z":-0,"a":2e1}],"a":"\u00e9\"1e0"}`: `{"a":"é\"1e0","b":[1,"1.0",{"a":2e1,"z":0}]}`,
	} {
		if got, err := Arguments([]byte(raw)); err != nil || string(got) != want {
			t.Errorf("%s became %s, %v; want %s", raw, got, err, want)
		}
	}
}

func TestDerivedKeysOfDifferentCallsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range []string{DeriveKey("s", "t", []byte("{}")), DeriveKey("st", "", []byte("{}")), DeriveKey("", "st", []byte("{}")), DeriveKey("s", "t{", []byte("}"))} {
		if seen[k] || CheckKey(k) != "" {
			t.Errorf("%s", k)
		}
		seen[k] = true
	}
}

func TestNamesForMeta(t *testing.T) {
	for _, good := range []string{KeyName, "claudecode/toolUseId", "idempotencyKey", "com.example.mcp/a.b_c-d", "a/b", "io.opengsd/idempotency-key"} {
		if err := CheckName(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "/", "a/", "/a", "a/b/c", "1a/b", "a..b/c", "a-/b", "io.modelcontextprotocol/x", "dev.mcp/x", "a/-b", "ä", "a b", "progress token", "progressToken", "traceparent"} {
		if err := CheckName(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// The text of a refusal agrees with its structured content, and does not say "not executed"
// if the call may have been executed.
func TestTextOfARefusalAgreesWithItsFields(t *testing.T) {
	for _, w := range []Words{{KeyName: KeyName}, {}} {
		all := []Refusal{w.KeyMissing(), w.KeyInvalid("Why."), w.ArgumentsInvalid(), w.ScopeMissing(), w.ScopeFailed(), w.Misconfigured(), w.NotExecuted(), w.Ended(), w.Foreign(), w.Unknown(0)}
		for kind := stet.KindInvalid; kind <= stet.KindClosed; kind++ {
			for _, x := range []stet.Execution{stet.MayHaveExecuted, stet.NotExecuted, stet.Executed} {
				r := w.Refuse(&stet.Error{Kind: kind, Execution: x, Cause: errors.New("secret")})
				if x != stet.NotExecuted && r.Execution == stet.NotExecuted && kind != stet.KindMismatch {
					t.Errorf("%v, %v: called not executed", kind, x)
				}
				all = append(all, r, w.Damaged(x), w.Failed("why", x))
			}
		}
		for _, r := range all {
			if not := strings.Contains(r.Text, "ot executed"); not != (r.Execution == stet.NotExecuted) && !strings.Contains(r.Text, "executed or not") {
				t.Errorf("%s, %v: %s", r.Name, r.Execution, r.Text)
			}
			if (r.Execution == stet.Executed) != strings.HasPrefix(r.Text, "Executed") || strings.Contains(r.Text, "secret") {
				t.Errorf("%s, %v: %s", r.Name, r.Execution, r.Text)
			}
			if w.KeyName == "" && strings.Contains(r.Text, "same key") {
				t.Errorf("a call without a key gets a text about keys: %s", r.Text)
			}
		}
	}
}
