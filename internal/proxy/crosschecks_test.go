package proxy_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
)

// secretFile is a file with a key.
func secretFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(keyFiles(t, "key"), "key")
}

func TestDrainIsAsLongAsTheLongestTimeout(t *testing.T) {
	for yaml, want := range map[string]time.Duration{
		head: 30 * time.Second, head + "routes: [{path: /a, timeout: 2m}, {path: /b, timeout: 1m}]\n": 2 * time.Minute,
		head + "routes: [{path: /a, timeout: 2s}]\n": 30 * time.Second, head + "drain: 3s\n": 3 * time.Second,
		head + "store: postgres://h/d\nroutes: [{path: /a, timeout: 2m, settles: service}]\n": 30 * time.Second,
	} {
		c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), env(nil))
		if err != nil || c.DrainTime() != want {
			t.Errorf("%s: %v, %v; want %v", yaml, c.DrainTime(), err, want)
		}
	}
}

func TestGraceThatIsTooShortIsRefused(t *testing.T) {
	for yaml, want := range map[string]string{
		"grace: 44s\n": "Write grace: 45s", "grace: 45s\n": "", "": "", "grace: 34s\ndrain_delay: 0s\n": "Write grace: 35s", "grace: 35s\ndrain_delay: 0s\n": "",
		"grace: 1m\nroutes: [{path: /a, timeout: 2m}]\n": "Write grace: 2m15s", "grace: 1m\ndrain: 46s\n": "Write grace: 1m1s", "grace: 1m1s\ndrain: 46s\n": "",
	} {
		c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(head+yaml)), env(nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", yaml, err, want)
		}
	}
}
