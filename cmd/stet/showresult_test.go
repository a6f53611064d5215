package main

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/sqlite"
)

// The output has the response: no bytes of the codec, and none
// that a terminal would obey.
func TestStoredResponseIsShownAsAResponse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.db")
	store, err := sqlite.Open(t.Context(), file, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte(strings.Repeat("k", 32))
	for key, o := range map[string]stet.Encryption{"plain": {}, "encrypted": {Keys: []stet.EncryptionKey{{Name: "a", Secret: secret}}}} {
		e, err := stet.New(store, stet.Options{Encryption: o, SweepEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		run, err := e.Begin(t.Context(), stet.Op{Scope: "single-tenant", Key: key})
		if err != nil {
			t.Fatal(err)
		}
		out, err := stethttp.Outcome(201, http.Header{"Content-Type": {"application/json"}, "X-Evil": {"\x1b[2J"}}, []byte("{\"charge\": 7}\n\x1b]0;owned\a\xff"))
		if err == nil {
			err = run.Settle(t.Context(), out)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = e.Close()
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(base64.StdEncoding.EncodeToString(secret)), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "\nHTTP 201\nContent-Type: application/json\nX-Evil: \\x1b[2J\n\n{\"charge\": 7}\n\\x1b]0;owned\\x07\\xff\n"
	for _, key := range []string{"plain", "encrypted"} {
		status, out, errs := command(t, "keys", "get", key, "--scope", "single-tenant", "--store", file, "--body", "--encryption-keys", "[{name: a, file: "+keyFile+"}]")
		if status != exitOK || !strings.HasSuffix(out, want) {
			t.Errorf("%s: %d %s%s", key, status, out, errs)
		}
	}
	if _, out, _ := command(t, "keys", "get", "plain", "--scope", "single-tenant", "--store", file, "--body", "-o", "json"); !strings.Contains(out, `"response":{"status":201,`) {
		t.Error(out)
	}
	if status, out, errs := command(t, "keys", "get", "encrypted", "--scope", "single-tenant", "--store", file, "--body"); status == exitOK || strings.Contains(out, "charge") || !strings.Contains(errs, "encrypted") {
		t.Errorf("without the key: %d %s%s", status, out, errs)
	}
}
