package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stet-go/stet/proxy"
)

// TestConfigurationsOfDocsAreAcceptable checks each configuration of a page as "stet check" does.
func TestConfigurationsOfDocsAreAcceptable(t *testing.T) {
	n := 0
	for _, pattern := range []string{"*.md", filepath.Join("adapters", "*.md")} {
		pages, err := filepath.Glob(filepath.Join("..", "..", "docs", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
				n++
				secret := func(string) (string, bool) { return "secret", true }
				c, err := proxy.Parse(filepath.Base(page), strings.NewReader(m[1]), secret)
				if err == nil {
					err = c.Check()
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
	}
	if n < 5 {
		t.Errorf("%d configurations", n)
	}
}
