package proxy_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
)

// newSecret is the content of a key file.
func newSecret(t *testing.T) string {
	t.Helper()
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b[:]) + "\n"
}

// keyFiles writes a key into each of the files of a new directory, which it returns.
func keyFiles(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(newSecret(t)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// stored is what the store holds of a key's response.
func (f *front) stored(key string) []byte {
	f.t.Helper()
	rec, err := f.store.Read(f.t.Context(), store.Digest("", "single-tenant", key))
	if err != nil || rec.State != store.Completed {
		f.t.Fatalf("%+v, %v", rec, err)
	}
	return rec.Result.Marshal()
}

func (f *front) reload(yaml string) error {
	f.t.Helper()
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), env(nil))
	if err != nil {
		f.t.Fatal(err)
	}
	return f.proxy.Reload(c)
}

func TestStoredResponsesAreEncryptedAndKeysRotateWhileTheProxyRuns(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Secret", "of-the-header")
		_, _ = io.WriteString(w, "of-the-body")
	})
	dir := keyFiles(t, "a", "b")
	with := func(keys string) string {
		return yamlFor(s.URL, "http1", single) + strings.NewReplacer("@a", "{name: a, file: "+dir+"/a}", "@b", "{name: b, file: "+dir+"/b}").Replace(keys)
	}
	f := start(t, with(""))
	first := f.post("plain", "{}")
	for _, tc := range []struct {
		keys     string
		replayed string // keys whose responses can be read
		lost     string // and the ones that cannot
	}{
		{"encryption: {keys: [@a]}\n", "", "plain"}, // it may be forged
		{"encryption: {keys: [@a], accept_plain: true}\n", "plain 0", ""},
		{"encryption: {keys: [@a, @b], accept_plain: true}\n", "plain 0 1", ""},
		{"encryption: {keys: [@b, @a]}\n", "0 1 2", "plain"},
		{"encryption: {keys: [@b]}\n", "3", "0 1 2 plain"},
	} {
		if err := f.reload(with(tc.keys)); err != nil {
			t.Fatal(err)
		}
		key := map[string]string{"plain": "0", "plain 0": "1", "plain 0 1": "2", "0 1 2": "3", "3": "4"}[tc.replayed]
		if tc.replayed == "" {
			key = "0"
		}
		for _, k := range strings.Fields(tc.replayed) {
			if r := f.post(k, "{}"); !r.replayed() || r.body != first.body || r.header.Get("X-Secret") != "of-the-header" {
				t.Errorf("%s: %s: %d %s", tc.keys, k, r.status, r.body)
			}
		}
		for _, k := range strings.Fields(tc.lost) {
			if r := f.post(k, "{}"); r.problem() != "result-unreadable" {
				t.Errorf("%s: %s: %d %s", tc.keys, k, r.status, r.body)
			}
		}
		if r := f.post(key, "{}"); r.status != 200 {
			t.Errorf("%s: %s: %d %s", tc.keys, key, r.status, r.body)
		}
		if b := f.stored(key); bytes.Contains(b, []byte("of-the-")) {
			t.Errorf("%s: stored in plain: %q", tc.keys, b)
		}
	}
	if n := s.count("plain"); n != 1 {
		t.Errorf("executed %d times", n)
	}
	// What cannot be read changes nothing.
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte("half of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.reload(with("encryption: {keys: [@b]}\n")); err == nil || strings.Contains(err.Error(), "half of it") {
		t.Error(err)
	}
	if r := f.post("4", "{}"); !r.replayed() {
		t.Errorf("got %d %s; want r.replayed()", r.status, r.body)
	}
}
