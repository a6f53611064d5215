package stettest

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Vectors are those of docs/vectors.json, which all languages are held to. They were not
// made by Go.
type Vectors struct {
	Fingerprints []struct {
		Version     int
		Parts       Parts
		Fingerprint string
	}
	IDs       []struct{ Namespace, Scope, Key, ID string }
	Claims    []struct{ ID, Owner, Fence, Claim string }
	Canonical []struct {
		Body, Form Hex
		Exclude    []string
	}
	Requests []struct {
		Method, Target string
		Headers        [][2]string
		Body           Hex
		Fingerprint    string
		Canonical      bool
	}
	// Locks are arguments of stet_begin_raw and stet_settle_raw, Heads stored header fields.
	Locks []struct {
		Namespace, Scope, Key, Schema, Table string
		Fingerprint                          Hex
		ID                                   string
		ScopeDigest                          string `json:"scope_digest"`
		RunLock                              string `json:"run_lock"`
		WaitLock                             string `json:"wait_lock"`
		PrintLock                            int32  `json:"print_lock"`
		Print                                int32
	}
	Heads []struct {
		Fields [][2]string
		Head   Hex
	}
	// Tools are texts of refused calls of tools, and keys with the reason why they are invalid.
	Tools struct {
		Texts []struct {
			Problem, Execution, Why, Text string
			Keyed                         bool
		}
		Keys []struct{ Key, Flaw string }
	}
}

// Hex are bytes that are in hexadecimal in a file; none are not nil, which SQL would take for NULL.
type Hex []byte

// UnmarshalText reads the digits.
func (h *Hex) UnmarshalText(text []byte) (err error) {
	*h, err = hex.AppendDecode([]byte{}, text)
	return err
}

// Parts are the parts of a fingerprint, each as Hex.
type Parts [][]byte

// UnmarshalJSON reads a list of Hex.
func (p *Parts) UnmarshalJSON(b []byte) error {
	var list []Hex
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*p = Parts{}
	for _, part := range list {
		*p = append(*p, part)
	}
	return nil
}

// ReadVectors reads docs/vectors.json, from the test of any package of this module. A file
// that has lost most of its vectors fails the test.
func ReadVectors(t testing.TB) (v Vectors) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(ModuleRoot(t), "docs", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Fingerprints) < 5 || len(v.IDs) < 5 || len(v.Claims) < 3 || len(v.Canonical) < 30 || len(v.Requests) < 15 || len(v.Locks) < 6 || len(v.Heads) < 7 {
		t.Fatalf("docs/vectors.json has %d fingerprints, %d IDs, %d claims, %d canonical bodies, %d requests, %d locks and %d heads; want 5, 5, 3, 30, 15, 6 and 7 at least",
			len(v.Fingerprints), len(v.IDs), len(v.Claims), len(v.Canonical), len(v.Requests), len(v.Locks), len(v.Heads))
	}
	return v
}

// ModuleRoot is the folder of go.mod, above that of the test.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	at, err := os.Getwd() // go test is in the package's folder
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			t.Fatal("there is no go.mod above the test's folder")
		}
		at = filepath.Dir(at)
	}
}
