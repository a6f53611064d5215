package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

func TestSweepRemovesOnlyExpiredRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	keys := []string{"forgotten", "expired", "dead", "live", "kept"}
	now := time.Now()
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Clock: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	id := func(key string) store.ID { return store.Digest("", "acme", key) }
	for i, ago := range []time.Duration{3 * time.Hour, 90 * time.Minute, 30 * time.Minute, 0, 0} {
		now = time.Now().Add(-ago)
		rec, err := s.Claim(t.Context(), store.ClaimRequest{ID: id(keys[i]), Scope: store.DigestScope("", "acme"),
			Fingerprint: stet.NewFingerprint([]byte("x")), Owner: store.NewOwner(), Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if keys[i] == "dead" || keys[i] == "live" {
			continue
		}
		out := store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("x")}}
		if err := s.Settle(t.Context(), rec.Claim(), out, store.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"1 results expired, 1 records removed, 1 expired runs marked unknown\n", "0 results expired, 0 records removed, 0 expired runs marked unknown\n"} {
		if status, out, stderr := command(t, "sweep", "--store", path); status != exitOK || out != want {
			t.Errorf("sweep %d: %d %q %s; want %q", i+1, status, out, stderr, want)
		}
	}
	if s, err = sqlite.Open(t.Context(), path, sqlite.Options{}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []store.State{store.None, store.Completed, store.Unknown, store.Running, store.Completed} {
		rec, err := s.Read(t.Context(), id(keys[i]))
		if err != nil || rec.State != want || rec.Gone != (keys[i] == "expired") {
			t.Errorf("%s is %v, gone %v, %v; want %v", keys[i], rec.State, rec.Gone, err, want)
		}
	}
}

func TestSweepExplainsErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.db")
	for want, args := range map[string][]string{
		"there is no file":                 {"sweep", "--store", missing},
		"--for must be positive":           {"sweep", "--store", "memory", "--for", "0s"},
		"unknown flag: --namespace":        {"sweep", "--store", "memory", "--namespace", "x"},
		"unknown command \"now\"":          {"sweep", "now"},
		"there is no store for mongodb://": {"sweep", "--store", "mongodb://x"},
	} {
		if status, out, stderr := command(t, args...); status != exitUsage || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %q %q; want %q", args, status, out, stderr, want)
		}
	}
	if status, out, _ := command(t, "sweep", "--store", "memory", "-o", "json"); status != exitOK || out != `{"expired":0,"removed":0,"unknown":0,"more":false}`+"\n" {
		t.Errorf("as JSON: %d %q", status, out)
	}
}
