package seal

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func key(t testing.TB, name string, fill byte) *Key {
	t.Helper()
	k, err := NewKey(name, bytes.Repeat([]byte{fill}, SecretSize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestDecryptReturnsTheEncryptedText(t *testing.T) {
	k := key(t, "2026", 1)
	for _, content := range [][]byte{nil, {0}, []byte("card 4242"), bytes.Repeat([]byte{0xff}, 1<<20)} {
		b := k.Encrypt(content, []byte("record 1"))
		got, err := k.Decrypt(b, []byte("record 1"))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %v", len(content), err)
		}
		if len(content) > 4 && bytes.Contains(b, content[:5]) {
			t.Error("the content can be read")
		}
		if name, ok := KeyName(b); !ok || name != "2026" {
			t.Errorf("the key's name is %q, %v", name, ok)
		}
	}
}

func TestEverySingleChangedBitIsRefused(t *testing.T) {
	k := key(t, "k", 1)
	sealed := k.Encrypt([]byte("HTTP/1.1 201 Created"), []byte("record 1"))
	for i := range sealed {
		for bit := range 8 {
			b := bytes.Clone(sealed)
			b[i] ^= 1 << bit
			if _, err := k.Decrypt(b, []byte("record 1")); !errors.Is(err, ErrDamaged) {
				t.Errorf("bit %d of byte %d: %v", bit, i, err)
			}
		}
	}
	for n := range sealed {
		if _, err := k.Decrypt(sealed[:n], []byte("record 1")); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

func TestResultOpensOnlyForItsRecordAndKey(t *testing.T) {
	k := key(t, "k", 1)
	b := k.Encrypt([]byte("x"), []byte("record 1"))
	if _, err := k.Decrypt(b, []byte("record 2")); !errors.Is(err, ErrDamaged) {
		t.Errorf("another record: %v", err)
	}
	if _, err := key(t, "k", 2).Decrypt(b, []byte("record 1")); !errors.Is(err, ErrDamaged) {
		t.Errorf("another secret: %v", err)
	}
	if _, err := key(t, "l", 1).Decrypt(b, []byte("record 1")); !errors.Is(err, ErrDamaged) {
		t.Errorf("another name: %v", err)
	}
}

func TestSameOutcomeIsTheSameBytesAndNoOtherIs(t *testing.T) {
	k := key(t, "k", 1)
	seen := map[string]string{}
	for _, content := range []string{"", "a", "b", "ab"} {
		for _, bound := range []string{"", "a", "b", "ab"} {
			b := string(k.Encrypt([]byte(content), []byte(bound)))
			if b != string(k.Encrypt([]byte(content), []byte(bound))) {
				t.Error("the same outcome sealed twice differs")
			}
			nonce := b[3 : 3+nonceSize]
			if was, ok := seen[nonce]; ok {
				t.Errorf("%q bound to %q has the nonce of %s", content, bound, was)
			}
			seen[nonce] = content + " bound to " + bound
		}
	}
}

func TestSecretHasOneSize(t *testing.T) {
	for _, n := range []int{0, 16, 31, 33} {
		if _, err := NewKey("k", make([]byte, n)); err == nil || !strings.Contains(err.Error(), "32") {
			t.Errorf("a secret of %d bytes: %v", n, err)
		}
	}
}

// TestEncryptedFormatIsFrozen keeps results that are stored today readable.
func TestEncryptedFormatIsFrozen(t *testing.T) {
	const stored = "02016b6f87d29bacfcbb1b041e317b12d391ad67f91ec9e598faf9f753b59ea46225db"
	got := hex.EncodeToString(key(t, "k", 7).Encrypt([]byte("stet"), []byte("record")))
	if got != stored {
		t.Errorf("it is %s, was %s", got, stored)
	}
	const earlier = "02016bfe3b4ecfd500cb3420b6f16442e8c80c7f79aaa38b6ea75dee5bcbdfbf3c4ec7" // with a nonce that knew no name
	b, err := hex.DecodeString(earlier)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := key(t, "k", 7).Decrypt(b, []byte("record")); err != nil || string(content) != "stet" {
		t.Errorf("got %q, %v; want string(content) == \"stet\", no error", content, err)
	}
}

// The authenticated data has the name. Two different texts under one nonce would reveal the
// authentication key.
func TestTwoNamesOfOneSecretShareNoNonce(t *testing.T) {
	nonce := func(name string) string {
		return string(key(t, name, 1).Encrypt([]byte("x"), []byte("record"))[2+len(name):][:nonceSize])
	}
	seen := map[string]string{}
	for _, name := range []string{"2025", "2026", "k", "kk", ""} {
		if was, ok := seen[nonce(name)]; ok {
			t.Errorf("the keys %q and %q of one secret share a nonce", was, name)
		}
		seen[nonce(name)] = name
	}
}

func FuzzDecrypt(f *testing.F) {
	k := key(f, "k", 1)
	f.Add(k.Encrypt([]byte("result"), []byte("r")), []byte("r"))
	f.Add([]byte{2, 1, 'k'}, []byte{})
	f.Add([]byte{2, 255}, []byte{})
	f.Fuzz(func(t *testing.T, b, bound []byte) {
		content, err := k.Decrypt(b, bound)
		if err == nil && !bytes.Equal(k.Encrypt(content, bound), b) {
			t.Fatalf("%q was accepted, which Encrypt does not make", b)
		}
	})
}
