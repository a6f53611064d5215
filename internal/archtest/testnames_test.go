package archtest

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testNames match the name of a test or of a subtest, by the kind of file. A title of a
// table of cases is read by TestWords only.
var testNames = map[string]*regexp.Regexp{
	".go": regexp.MustCompile(`(?m)^func (?:Test|Fuzz|Benchmark|Example)(\w+)\(|\b[tbf]\.Run\(["` + "`" + `]([^"` + "`" + `]+)`),
	".py": regexp.MustCompile(`(?m)^ *(?:async )?def test_(\w+)`),
	".js": regexp.MustCompile(`\b(?:test|it|describe)(?:\.\w+)?\(["'` + "`" + `]([^"'` + "`" + `]+)`),
}

// nameWord is a word within a name: of CamelCase, of snake_case or of a title.
var nameWord = regexp.MustCompile(`[A-Z]?[a-z]+`)

// jsValue is code in a title of JavaScript.
var jsValue = regexp.MustCompile(`\$\{[^}]*\}`)

// TestNamesOfTestsHaveNoWordThatIsOut reads the words within each name of a test in Go, Python
// and JavaScript: those of testdata/words.txt and of testdata/testnames.txt are out.
func TestNamesOfTestsHaveNoWordThatIsOut(t *testing.T) {
	byForm := map[string]*outWord{}
	for _, list := range []string{"words.txt", "testnames.txt"} {
		text, err := os.ReadFile(filepath.Join("testdata", list))
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(byForm, wordsOf(string(text)))
	}
	read := map[string]int{}
	err := eachText(func(place, text string) {
		ext := filepath.Ext(place)
		names := testNames[ext]
		if names == nil {
			return
		}
		for _, m := range names.FindAllStringSubmatch(text, -1) {
			name := strings.Join(m[1:], "")
			read[ext]++
			if out := namesOut(name, byForm); len(out) > 0 {
				t.Errorf("%s: %s has %q: write %s", place, name, out[0].forms[0], out[0].write)
			}
		}
	})
	if err != nil || read[".go"] < 2000 || read[".py"] < 50 || read[".js"] < 50 {
		t.Errorf("read %v names, %v", read, err)
	}
}

// namesOut returns the words that the name has.
func namesOut(name string, byForm map[string]*outWord) (out []*outWord) {
	spaced := nameWord.ReplaceAllString(jsValue.ReplaceAllString(name, ""), " $0")
	count(strings.ToLower(spaced), byForm, func(w *outWord) { out = append(out, w) })
	return out
}

func TestNamesOut_SplitsNames(t *testing.T) {
	byForm := wordsOf("blue => green\nlight blue => green\n")
	for name, want := range map[string]int{
		"BoatIsBlue": 1, "HTTPBlue": 1, "boat_is_blue": 1, "LightBlue": 2, "Blueish": 0, "a boat ${blue} is blue": 1,
	} {
		if got := namesOut(name, byForm); len(got) != want {
			t.Errorf("%s has %d words that are out, want %d", name, len(got), want)
		}
	}
}
