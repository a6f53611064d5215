package stethttp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

func TestKeyInTheContentIsTheKey(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{KeyPolicy: stethttp.KeyPolicy{Pointer: "/meta/a~1b/1"}}})
	body := `{"meta": {"a/b": ["x", "k-1"]}, "n": 1}`
	wantReply(t, s.post("", body), 201, body, false)
	wantReply(t, s.post("", body), 201, body, true)
	wantReply(t, s.post("k-1", body), 201, body, true) // the same key in the header, too
	wantProblem(t, s.post("", `{"meta": {"a/b": ["x", "k-1"]}, "n": 2}`), 422, "mismatch")
	s.wantRuns(1)
	// A header alone will do.
	wantReply(t, s.post("k-2", `{"n": 1}`), 201, `{"n": 1}`, false)
	wantReply(t, s.post("k-2", `{"n": 1}`), 201, `{"n": 1}`, true)
	s.wantRuns(2)
}

func TestContentWithoutAClearKeyIsRefused(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{MaxBody: 100, KeyPolicy: stethttp.KeyPolicy{Pointer: "/id"}}})
	for name, c := range map[string]struct {
		key, body, problem, detail string
		status                     int
		header                     []string
	}{
		"none":          {"", `{"other": 1}`, "key-missing", "the value at /id", 400, nil},
		"null":          {"", `{"id": null}`, "key-missing", "", 400, nil},
		"nothing":       {"", ``, "key-missing", "", 400, nil},
		"no object":     {"", `"id"`, "key-missing", "", 400, nil},
		"no JSON":       {"", `{"id": "a"`, "key-missing", "", 400, nil},
		"two texts":     {"", `{"id": "a"}{"id": "b"}`, "key-missing", "", 400, nil},
		"in a form":     {"", `id=a`, "key-missing", "", 400, nil},
		"coded":         {"", `{"id": "a"}`, "key-missing", "", 400, []string{"Content-Encoding", "gzip"}},
		"a number":      {"", `{"id": 7}`, "key-invalid", "not text", 400, nil},
		"an object":     {"", `{"id": {}}`, "key-invalid", "not text", 400, nil},
		"empty":         {"", `{"id": ""}`, "key-invalid", "empty", 400, nil},
		"a space":       {"", `{"id": "a b"}`, "key-invalid", "visible", 400, nil},
		"no ASCII":      {"", `{"id": "\u00e9"}`, "key-invalid", "visible", 400, nil},
		"twice":         {"", `{"id": "a", "x": 1, "id": "a"}`, "key-repeated", "more than once", 400, nil},
		"others":        {"b", `{"id": "a"}`, "key-repeated", "different keys", 400, nil},
		"quoted":        {"a", `{"id": "\"a\""}`, "key-repeated", "different keys", 400, nil},
		"number beside": {"a", `{"id": 7}`, "key-invalid", "not text", 400, nil},
		"bad header":    {"a,b", `{"id": "a"}`, "key-invalid", "comma", 400, nil},
		"too large":     {"", `{"id": "a", "x": "` + strings.Repeat("x", 100) + `"}`, "body-too-large", "", 413, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.post(c.key, c.body, c.header...)
			wantProblem(t, r, c.status, c.problem)
			if !strings.Contains(r.problem().Detail, c.detail) || r.problem().Execution != "not executed" {
				t.Errorf("%+v", r.problem())
			}
		})
	}
	s.wantRuns(0)
}

func TestOptionalKeyInTheContentPassesWithItsContentWhole(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Optional: true, KeyPolicy: stethttp.KeyPolicy{Pointer: "/id"}}})
	for range 2 {
		wantReply(t, s.post("", `{"x": 1}`), 201, `{"x": 1}`, false)
	}
	s.wantRuns(2)
	for _, replayed := range []bool{false, true} {
		wantReply(t, s.post("", `{"id": "a"}`), 201, `{"id": "a"}`, replayed)
	}
	s.wantRuns(3)
	wantProblem(t, s.post("", `{"id": 7}`), 400, "key-invalid")
	if r := s.do(s.request("GET", "/", "", `{"id": "a"}`)); r.replayed() {
		t.Error("a GET was protected")
	}
}

func TestAcceptedOperationsHaveKeysInTheirContent(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{KeyPolicy: stethttp.KeyPolicy{Pointer: "/id"}}, async: &stethttp.AsyncOptions{}})
	first, second := s.order("", `{"id": "a"}`), s.order("", `{"id": "a"}`)
	if first.status != 202 || second.status != 202 || first.header.Get("Location") != second.header.Get("Location") {
		t.Errorf("got %d %s, and %d %s", first.status, first.header.Get("Location"), second.status, second.header.Get("Location"))
	}
	wantProblem(t, s.order("", `{}`), 400, "key-missing")
}

func TestKeyPolicyRefusesWeakKeys(t *testing.T) {
	const uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324"
	for _, c := range []struct {
		policy stethttp.KeyPolicy
		key    string
		ok     bool
	}{
		{stethttp.KeyPolicy{}, "1", true},
		{stethttp.KeyPolicy{UUID: true}, uuid, true},
		{stethttp.KeyPolicy{UUID: true}, strings.ToUpper(uuid), true},
		{stethttp.KeyPolicy{UUID: true}, "0193b0a0-0000-7000-8000-000000000000", true},
		{stethttp.KeyPolicy{UUID: true}, "00000000-0000-0000-0000-000000000000", false},
		{stethttp.KeyPolicy{UUID: true}, "ffffffff-ffff-ffff-ffff-ffffffffffff", false},
		{stethttp.KeyPolicy{UUID: true}, "8e03978e-40d5-43e8-7c93-6894a57f9324", false},
		{stethttp.KeyPolicy{UUID: true}, "8e03978e40d543e8bc936894a57f9324", false},
		{stethttp.KeyPolicy{UUID: true}, "8e03978e-40d5-43e8-bc93-6894a57f932g", false},
		{stethttp.KeyPolicy{UUID: true}, "8e03978e_40d5_43e8_bc93_6894a57f9324", false},
		{stethttp.KeyPolicy{UUID: true}, uuid + "0", false},
		{stethttp.KeyPolicy{MinLength: 3}, "ab", false},
		{stethttp.KeyPolicy{MinLength: 3}, "abc", true},
		{stethttp.KeyPolicy{MinEntropy: 64}, uuid, true},
		{stethttp.KeyPolicy{MinEntropy: 64}, "order-1", false},
		{stethttp.KeyPolicy{MinEntropy: 64}, "00000000000000000000000000000001", false},
		{stethttp.KeyPolicy{MinEntropy: 64}, "abababababababababababababababab", false},
		{stethttp.KeyPolicy{MinEntropy: 64}, "0123456789abcdef", true},
		{stethttp.KeyPolicy{MinEntropy: 65}, "0123456789abcdef", false},
	} {
		s := start(t, setup{options: stethttp.Options{KeyPolicy: c.policy}})
		if r := s.post(c.key, "x"); c.ok {
			wantReply(t, r, 201, "x", false)
		} else {
			wantProblem(t, r, 400, "key-invalid")
			if len(c.key) > 8 && strings.Contains(r.body, c.key) {
				t.Errorf("the refusal shows the key: %s", r.body)
			}
		}
	}
}

func TestUUIDsAreTheSameInAnyCase(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{KeyPolicy: stethttp.KeyPolicy{UUID: true, Pointer: "/id"}}})
	body := `{"id": "8E03978E-40D5-43E8-BC93-6894A57F9324"}`
	wantReply(t, s.post("8e03978e-40d5-43e8-bc93-6894a57f9324", body), 201, body, false)
	wantReply(t, s.post("", body), 201, body, true)
}

func TestRandomUUIDsHaveTheEntropyThatMayBeDemanded(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{KeyPolicy: stethttp.KeyPolicy{UUID: true, MinEntropy: 100}}})
	for range 200 {
		if r := s.post(uuid4(), "x"); r.status != 201 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
}

// uuid4 makes a random UUID.
func uuid4() string {
	h := stet.NewFingerprint([]byte(stet.NewKey()))
	const digits = "0123456789abcdef"
	var b strings.Builder
	for i := range 32 {
		switch i {
		case 8, 12, 16, 20:
			b.WriteByte('-')
		}
		switch i {
		case 12:
			b.WriteByte('4')
		case 16:
			b.WriteByte('8')
		default:
			b.WriteByte(digits[h[i]&15])
		}
	}
	return b.String()
}

func TestRetryAfterHasTheConfiguredLength(t *testing.T) {
	b := newBlocking()
	s := start(t, setup{options: stethttp.Options{RetryAfter: 1500 * time.Millisecond}, handler: b.ServeHTTP})
	first := make(chan reply)
	go func() { first <- s.post("k", "x") }()
	<-b.entered
	r := s.post("k", "x")
	wantProblem(t, r, 409, "in-flight")
	if got := r.header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After: %s", got)
	}
	close(b.leave)
	<-first
}
