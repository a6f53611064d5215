package proxy_test

import (
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
)

// FuzzParse: for any content of the file, reading it ends with a configuration that can
// be checked or with an error that has no secret.
func FuzzParse(f *testing.F) {
	const secret = "hunter2-of-the-environment"
	f.Add(proxy.Reference)
	f.Add("upstream: {url: 'http://127.0.0.1:1'}\nscope: single-tenant\n")
	f.Add("admin: {token: '${TOKEN}'}\nlease: ${TOKEN}\n")
	f.Add("a: &a {<<: *a, c: *a}\nb: [*a, $$, ${X:-y}]\n---\n")
	f.Add("routes: [{lease: 1d, retention: -1s, path: '/{'}]")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(text)), func(string) (string, bool) { return secret, true })
		if err == nil {
			err = c.Check()
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error has values from the environment: %v", err)
		}
	})
}
