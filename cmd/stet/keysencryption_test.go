package main

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/seal"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

func TestKeysEncryptByConfigurationOrFlags(t *testing.T) {
	secret := bytes.Repeat([]byte{7}, seal.SecretSize)
	key := filepath.Join(t.TempDir(), "key")
	config := filepath.Join(t.TempDir(), "stet.yaml")
	for file, text := range map[string]string{key: base64.StdEncoding.EncodeToString(secret), config: "encryption:\n  keys: [{name: k1, file: " + key + "}]\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const args = "resolve unknown --scope acme --as completed --status 201 --reason r --yes"
	for _, flags := range [][]string{{"--config", config}, {"--encryption-keys", "[{name: k1, file: " + key + "}]"}} {
		d := newShop(t)
		for wrong, more := range map[string][]string{
			"leave one of them out": append([]string{"--plain"}, flags...), "no such file": {"--encryption-keys", "[{name: k1, file: " + key + "x}]"}, "at least one": {"--encryption-keys", "[]"},
		} {
			if status, _, errs := d.run("", args, more...); status != exitUsage || !strings.Contains(errs, wrong) || d.state("unknown") != store.Unknown {
				t.Errorf("%v: %d %s", more, status, errs)
			}
		}
		if status, _, errs := d.run("", args, flags...); status != exitOK {
			t.Fatalf("%v: %d %s", flags, status, errs)
		}
		s, err := sqlite.Open(t.Context(), d.path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		engine := stettest.Engine(t, s, stet.Options{SweepEvery: -1, Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k1", Secret: secret}}}})
		run, err := engine.Begin(t.Context(), stet.Op{Scope: "acme", Key: "unknown", Fingerprint: stet.NewFingerprint([]byte("x"))})
		if err != nil || !run.Replayed() {
			t.Errorf("the service does not replay it: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A configuration without encryption says that there is none.
	if err := os.WriteFile(config, []byte("namespace: ''\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newShop(t)
	if status, _, errs := d.run("", args, "--config", config); status != exitOK {
		t.Errorf("%d %s", status, errs)
	}
}
