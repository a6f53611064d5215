package archtest

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
)

// wordFiles are the kinds of files whose words readers meet.
var wordFiles = []string{".go", ".md", ".py", ".js", ".ts", ".yaml", ".yml", ".sql", ".lua"}

// codeSpan is code in a line of Markdown.
var codeSpan = regexp.MustCompile("`[^`\n]*`")

// quotations removes terms of other languages, such as Go's http.NoBody: the lines of
// testdata/quotations.txt.
func quotations() (*strings.Replacer, error) {
	text, err := os.ReadFile(filepath.Join("testdata", "quotations.txt"))
	var pairs []string
	for line := range strings.Lines(string(text)) {
		pairs = append(pairs, strings.TrimSpace(line), "")
	}
	return strings.NewReplacer(pairs...), err
}

// outWord is a line of testdata/words.txt: forms of a word or a phrase of up to three words.
type outWord struct {
	forms  []string
	write  string
	places []string // the files that have it, once for each place
}

// TestWords prints, with -v, how often each word that is out occurs, and where. TestBudgets
// holds the sum to its limit.
func TestWords(t *testing.T) {
	words, err := outWords()
	if err != nil || len(words) < 60 {
		t.Fatalf("testdata/words.txt has %d lines, %v; want 60 at least", len(words), err)
	}
	for _, w := range words {
		if n := len(w.places); n > 0 {
			t.Logf("%5d  %s => %s, as in %s", n, w.forms[0], w.write, strings.Join(slices.Compact(w.places)[:min(3, len(slices.Compact(w.places)))], ", "))
		}
	}
}

// outWords returns the words that are out, with their places in this repository.
var outWords = sync.OnceValues(func() (words []*outWord, err error) {
	text, err := os.ReadFile(filepath.Join("testdata", "words.txt"))
	if err != nil {
		return nil, err
	}
	quoted, err := quotations()
	if err != nil {
		return nil, err
	}
	byForm := wordsOf(string(text))
	err = eachText(func(place, text string) {
		if place == "CHANGELOG.md" { // it quotes names that are gone
			text = codeSpan.ReplaceAllString(text, "")
		}
		count(quoted.Replace(strings.ToLower(text)), byForm, func(w *outWord) { w.places = append(w.places, place) })
	})
	words = slices.SortedFunc(maps.Values(byForm), func(a, b *outWord) int { return strings.Compare(a.forms[0], b.forms[0]) })
	return slices.Compact(words), err
})

// wordsOf returns the entries of a list, by each of their forms.
func wordsOf(list string) map[string]*outWord {
	byForm := map[string]*outWord{}
	for line := range strings.Lines(list) {
		forms, write, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		w := &outWord{forms: strings.Split(forms, ", "), write: write}
		for _, form := range w.forms {
			byForm[form] = w
		}
	}
	return byForm
}

// eachText calls do with each file of this repository that has one of the wordFiles' kinds.
func eachText(do func(place, text string)) error {
	root := filepath.Join("..", "..")
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := ""; {
		case err != nil:
			return err
		case d.IsDir():
			if name = d.Name(); path != root && (strings.HasPrefix(name, ".") || slices.Contains([]string{"testdata", "node_modules", "bin", "reports"}, name)) {
				return filepath.SkipDir
			}
			return nil
		case !slices.Contains(wordFiles, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		place, err := filepath.Rel(root, path)
		do(filepath.ToSlash(place), string(text))
		return err
	})
}

// count calls found for each word of byForm that the text has.
func count(text string, byForm map[string]*outWord, found func(*outWord)) {
	all := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) })
	for i := range all {
		for n := 1; n <= 3 && i+n <= len(all); n++ {
			if w := byForm[strings.Join(all[i:i+n], " ")]; w != nil {
				found(w)
			}
		}
	}
}
