package stethttp_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
)

// byAccount takes the scope from a header, as if it was authenticated.
func byAccount(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }

var madeFor = regexp.MustCompile(`<made for ([^>]*)>`)

// TestTwoPrincipalsNeverShareAByte sends random requests of several principals,
// who use the same few keys and bodies. An answer to one of them has
// only that principal's data.
func TestTwoPrincipalsNeverShareAByte(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Scope: byAccount}, handler: func(w http.ResponseWriter, r *http.Request) {
		stamp := "<made for " + r.Header.Get("Account") + ">"
		w.Header().Set("Stamp", stamp)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, stamp)
	}})
	accounts := rapid.SampledFrom([]string{"a", "b", "a:b", "a b", "ab", "A"})
	keys := rapid.SampledFrom([]string{"k", "b:k", `"k"`, "b", "K"})
	bodies := rapid.SampledFrom([]string{"{}", `{"amount":1}`})
	stamps := 0
	rapid.Check(t, func(rt *rapid.T) {
		account := accounts.Draw(rt, "account")
		got := s.post(keys.Draw(rt, "key"), bodies.Draw(rt, "body"), "Account", account)
		if got.err != nil || got.status != 201 && got.status != 422 {
			rt.Fatalf("%d %q, %v", got.status, got.body, got.err)
		}
		for _, stamp := range madeFor.FindAllStringSubmatch(got.body+fmt.Sprint(got.header), -1) {
			if stamps++; stamp[1] != account {
				rt.Fatalf("%q got the response of %q", account, stamp[1])
			}
		}
	})
	if stamps == 0 {
		t.Error("no request could have got the response of another scope")
	}
}

// TestRevokedAccessIsNotReplayed: the middleware stands behind authentication,
// which is asked about every retry.
func TestRevokedAccessIsNotReplayed(t *testing.T) {
	revoked := false
	s := start(t, setup{around: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if revoked {
				http.Error(w, "access was revoked", http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	wantReply(t, s.post("k", "secret"), 201, "secret", false)
	revoked = true
	wantReply(t, s.post("k", "secret"), 401, "access was revoked\n", false)
	revoked = false
	wantReply(t, s.post("k", "secret"), 201, "secret", true)
}

// TestReplayCannotInjectHeaders: a stored value with line breaks stays one value,
// as in the first response.
func TestReplayCannotInjectHeaders(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Memo", "a\r\nInjected: yes\r\n\r\n<script>")
		w.Header()["Na\r\nInjected"] = []string{"yes"}
		w.WriteHeader(http.StatusCreated)
	}})
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for i := range 3 {
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}")
		got := readReply(in)
		if got.err != nil || got.status != 201 || got.replayed() != (i > 0) || got.header.Get("Injected") != "" || got.body != "" {
			t.Errorf("got %d, %v, %q, %v; want got.err == nil, got.status == 201, got.replayed() == (i > 0), got.header.Get(\"Injected\") == \"\", got.body == \"\"", got.status, got.header, got.body, got.err)
		}
	}
}

// TestNeitherKeysNorBodiesAreLogged drives a service through everything that is
// logged or observed, and searches all of it for what clients and handlers sent.
func TestNeitherKeysNorBodiesAreLogged(t *testing.T) {
	const canary = "canary"
	everything := &stettest.Log{}
	options := stethttp.Options{
		Scope:    func(*http.Request) (string, error) { return canary + "-scope", nil },
		ErrorLog: slog.New(slog.NewTextHandler(everything, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Panic") != "" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Memo", canary+"-memo")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, canary+"-response")
	}
	store := newFaulty()
	s := start(t, setup{store: store, options: options, handler: answer, engine: stet.Options{Policy: stet.Policy{Lease: 50 * time.Millisecond}}})
	key := func(n int) string { return fmt.Sprintf("%s-key-%d", canary, n) }
	s.post(key(1), canary+"-body")                 // new
	s.post(key(1), canary+"-body")                 // replayed
	s.post(key(1), canary+"-other")                // mismatched
	s.post(key(2), canary+"-body", "Panic", "yes") // panicked
	s.post(canary+"\x7f", canary+"-body")          // malformed
	store.claim.Store(true)                        //
	s.post(key(3), canary+"-body")                 // the store cannot be used
	store.claim.Store(false)                       //
	store.settle.Store(true)                       //
	s.post(key(4), canary+"-body")                 // not settled
	store.settle.Store(false)                      //
	store.skip.Add(int64(time.Hour))               //
	s.post(key(4), canary+"-body")                 // unknown
	other := start(t, setup{store: store, options: options, engine: sealed()})
	other.post(key(4), canary+"-body") // resolved
	s.post(key(4), canary+"-body")     // damaged
	options.FailOpen = true
	open := start(t, setup{store: store, options: options, handler: answer})
	store.claim.Store(true)
	open.post(key(5), canary+"-body") // unprotected

	for _, svc := range []*service{s, other, open} {
		_, _ = io.WriteString(everything, svc.log.String())
		for _, ev := range svc.events.List() {
			_, _ = fmt.Fprintf(everything, "%+v %v\n", ev, ev.Err)
		}
	}
	text := everything.String()
	if n := strings.Count(text, "level="); n < 3 {
		t.Errorf("only %d lines were logged: %s", n, text)
	}
	for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))[:8], fmt.Sprintf("%x", canary), fmt.Sprintf("%d", []byte(canary))[1:20]} {
		if i := strings.Index(text, form); i >= 0 {
			t.Errorf("logged: …%.200s", text[max(0, i-100):])
		}
	}
}
