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
