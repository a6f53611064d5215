package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// wordFiles are the kinds of files whose words readers meet.
var wordFiles = []string{".go", ".md", ".py", ".js", ".ts", ".yaml", ".yml", ".sql", ".lua"}

type outWord struct {
	out   *regexp.Regexp
	write string
}

// TestWords prints, with -v, how often each pattern of testdata/words.txt occurs, and where.
// TestBudgets holds their sum, "words that are out", to its limit.
func TestWords(t *testing.T) {
	list := outWords(t)
	if len(list) < 60 {
		t.Fatalf("testdata/words.txt has %d patterns; want 60 at least", len(list))
	}
	for i, places := range wordPlaces(t, list) {
		if len(places) > 0 {
			t.Logf("%5d  %s => %s, as in %s", len(places), list[i].out, list[i].write, strings.Join(places[:min(3, len(places))], ", "))
		}
	}
}

func outWords(t *testing.T) (list []outWord) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "words.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		out, write, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if strings.HasPrefix(line, "#") || !ok {
			continue
		}
		list = append(list, outWord{regexp.MustCompile(out), write})
	}
	return list
}

// wordPlaces returns the files in which each pattern occurs, once for each place.
func wordPlaces(t *testing.T, list []outWord) [][]string {
	t.Helper()
	var all []string
	for _, w := range list {
		all = append(all, w.out.String())
	}
	any := regexp.MustCompile(strings.Join(all, "|"))
	found := make([][]string, len(list))
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || slices.Contains([]string{"testdata", "node_modules", "bin", "reports"}, name)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains(wordFiles, filepath.Ext(name)) || name == "words_test.go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		for _, place := range any.FindAllString(strings.ToLower(string(text)), -1) {
			i := slices.IndexFunc(list, func(w outWord) bool { return w.out.MatchString(place) })
			found[i] = append(found[i], filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
