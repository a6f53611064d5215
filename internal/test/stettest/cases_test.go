package stettest

import "testing"

func TestTableWithFewerThanTwoCasesIsRefused(t *testing.T) {
	for text, refused := range map[string]bool{
		"":                            true,
		"--a\nx\n=> y\n--b\n=> z\n":   true,
		"-- a\nx\n=> y\n":             true,
		"-- a\nx\n=> y\n-- b\n=> z\n": false,
	} {
		if _, err := split(text); (err != nil) != refused {
			t.Errorf("%q: %v", text, err)
		}
	}
}
