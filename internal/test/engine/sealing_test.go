package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func secret(name string, fill byte) stet.EncryptionKey {
	return stet.EncryptionKey{Name: name, Secret: bytes.Repeat([]byte{fill}, 32)}
}

func encrypted(keys ...stet.EncryptionKey) stet.Options {
	return stet.Options{Encryption: stet.Encryption{Keys: keys}}
}

// settle runs op and returns what the store keeps of it.
func settle(t *testing.T, store store.Store, o stet.Options, op stet.Op, result string) store.Record {
	t.Helper()
	e := newEngine(t, store, o)
	run, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Settle(t.Context(), stet.Outcome{Body: []byte(result)}); err != nil {
		t.Fatal(err)
	}
	rec, err := store.Read(t.Context(), run.ID())
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// replayed returns what another process, with options of its own, replays.
func replayed(t *testing.T, store store.Store, o stet.Options, op stet.Op) (string, error) {
	t.Helper()
	run, err := newEngine(t, store, o).Begin(t.Context(), op)
	if err != nil {
		return "", err
	}
	return string(run.Outcome().Body), nil
}

func TestStoredResultCannotBeRead(t *testing.T) {
	store := memory.New(memory.Options{})
	o := encrypted(secret("2026", 1))
	rec := settle(t, store, o, op, "card 4242")
	if bytes.Contains(rec.Result.Marshal(), []byte("4242")) {
		t.Fatalf("the store has %q", rec.Result.Marshal())
	}
	if got, err := replayed(t, store, o, op); err != nil || got != "card 4242" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestKeysRotate(t *testing.T) {
	store := memory.New(memory.Options{})
	older, newer := secret("2025", 1), secret("2026", 2)
	settle(t, store, encrypted(older), op, "old")
	after := op
	after.Key = "k2"
	settle(t, store, encrypted(newer, older), after, "new")
	for _, o := range []stet.Options{encrypted(newer, older), encrypted(older, newer)} {
		if got, err := replayed(t, store, o, op); err != nil || got != "old" {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := replayed(t, store, o, after); err != nil || got != "new" {
			t.Errorf("%q, %v", got, err)
		}
	}
	_, err := replayed(t, store, encrypted(newer), op)
	if stet.KindOf(err) != stet.KindDamaged || stet.ExecutionOf(err) != stet.Executed || !strings.Contains(err.Error(), "2025") {
		t.Errorf("without the old key: %v", err)
	}
}

// swapping is a store with two exchanged rows.
type swapping struct {
	*memory.Store
	result store.Result
	state  store.State
}

func (s swapping) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := s.Store.Claim(ctx, req)
	rec.Result, rec.State = s.result, s.state
	return rec, err
}

func TestRowsCannotBeSwapped(t *testing.T) {
	st := memory.New(memory.Options{})
	o := encrypted(secret("k", 1))
	mine := settle(t, st, o, op, "mine")
	theirs := op
	theirs.Scope = "another"
	foreign := settle(t, st, o, theirs, "theirs")
	plainKey := op
	plainKey.Key = "plain"
	plain := settle(t, st, stet.Options{}, plainKey, "forged")
	for name, s := range map[string]swapping{
		"the result of another scope": {st, foreign.Result, store.Completed},
		"another state":               {st, mine.Result, store.Failed},
		"a result that is not sealed": {st, plain.Result, store.Completed},
	} {
		want := stet.Executed
		if s.state == store.Failed {
			want = stet.MayHaveExecuted
		}
		if got, err := replayed(t, s, o, op); stet.KindOf(err) != stet.KindDamaged || stet.ExecutionOf(err) != want {
			t.Errorf("%s was replayed: %q, %v", name, got, err)
		}
	}
	o.Encryption.AcceptPlain = true
	if got, err := replayed(t, st, o, plainKey); err != nil || got != "forged" {
		t.Errorf("a plain result, which is accepted: %q, %v", got, err)
	}
}

func TestBadEncryptionKeysAreRefused(t *testing.T) {
	for name, keys := range map[string][]stet.EncryptionKey{
		"no name":       {secret("", 1)},
		"long name":     {secret(strings.Repeat("n", 256), 1)},
		"one name":      {secret("k", 1), secret("k", 2)},
		"short secret":  {{Name: "k", Secret: make([]byte, 16)}},
		"no secret":     {{Name: "k"}},
		"second broken": {secret("k", 1), {Name: "l", Secret: []byte("password")}},
	} {
		if _, err := stet.New(memory.New(memory.Options{}), encrypted(keys...)); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	o := encrypted(stet.EncryptionKey{Name: "k", Secret: []byte("canary-canary-canary-canary-cana")})
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		text := fmt.Sprintf(verb, o)
		if strings.Contains(text, "canary") || strings.Contains(text, "99 97 110 97") || strings.Contains(text, "0x63, 0x61") || strings.Contains(text, "63616e617279") {
			t.Errorf("%s prints the secret: %s", verb, text)
		}
	}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		for _, v := range []any{o.Encryption, o.Encryption.Keys[0], &o.Encryption.Keys[0]} {
			log.Reset()
			slog.New(h).Info("options", "encryption", v)
			if text := log.String(); !strings.Contains(text, `k`) || strings.Contains(text, "Y2FuYXJ5") || strings.Contains(text, "canary") || strings.Contains(text, "99 97 110 97") {
				t.Errorf("logged: %s", text)
			}
		}
	}
}

func TestReplayIsTheCallersOwnCopy(t *testing.T) {
	for _, o := range []stet.Options{{}, encrypted(secret("k", 1))} {
		store := memory.New(memory.Options{})
		settle(t, store, o, op, "outcome")
		run, err := newEngine(t, store, o).Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		clear(run.Outcome().Body)
		if got, err := replayed(t, store, o, op); err != nil || got != "outcome" {
			t.Errorf("after a caller wrote into its replay: %q, %v", got, err)
		}
	}
}

func TestStoredBodyIsNotTheCallersMemory(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte("receipt 1")
	if err := run.Settle(t.Context(), stet.Outcome{Body: body}); err != nil {
		t.Fatal(err)
	}
	copy(body, "another's")
	if run, err = e.Begin(t.Context(), op); err != nil || string(run.Outcome().Body) != "receipt 1" {
		t.Errorf("the replay has the body %q, %v", run.Outcome().Body, err)
	}
}
