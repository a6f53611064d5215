package stethttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/stet-go/stet/internal/misuse"
)

// KeyPolicy has rules for keys. Keys that break one are refused with 400 (key-invalid). The
// zero value accepts every key.
type KeyPolicy struct {
	// Strict accepts only the quoted form of a key in the header, a structured field of type
	// String (RFC 9651). By default a value that does not begin with a quote is a key too,
	// and names the same operation as its quoted form. A value with a comma is refused,
	// because it may be two keys that a proxy has joined.
	Strict bool
	// FoldCase makes keys equal that differ only in the case of ASCII letters.
	FoldCase bool
	// UUID accepts only UUIDs (RFC 9562) of versions 1 to 8, in their usual form. It implies
	// FoldCase.
	UUID bool
	// MinLength is the least length in bytes; at most 255.
	MinLength int
	// MinEntropy is the least estimated entropy in bits: the length times the entropy of the
	// byte frequencies. It finds constants, counters and short words, and cannot tell an
	// alphabet from random bytes. For n different bytes it is n × log2(n), 64 for 16 of
	// them; a random UUID has about 130. At most 1024; with UUID, 100.
	MinEntropy int
	// Pointer is a JSON pointer (RFC 6901) to a key in the content of a request: "/id" for
	// {"id": "…"}. The value must be a string, without quotes inside. It can replace the
	// header; if both are there and differ, the request is refused with 400 (key-repeated).
	// Content that is not JSON, or has a Content-Encoding, has no key. A request with a body
	// above MaxBody is then refused also if the key is optional. Default "": header only.
	Pointer string
}

const (
	maxEntropy     = 1024
	maxUUIDEntropy = 100
	uuidLength     = 36
)

// check validates the policy.
func (p KeyPolicy) check() error {
	most := maxEntropy
	if p.UUID {
		most = maxUUIDEntropy
	}
	switch {
	case p.MinLength < 0 || p.MinLength > maxKey:
		return misuse.Errorf("stethttp: Options.KeyPolicy.MinLength is %d; it must be 0 to %d", p.MinLength, maxKey)
	case p.UUID && p.MinLength > uuidLength:
		return misuse.Errorf("stethttp: Options.KeyPolicy.MinLength is %d, and a UUID has %d bytes: no key would do", p.MinLength, uuidLength)
	case p.MinEntropy < 0 || p.MinEntropy > most:
		return misuse.Errorf("stethttp: Options.KeyPolicy.MinEntropy is %d; it must be 0 to %d here", p.MinEntropy, most)
	}
	return nil
}

// refuses returns the reason for the refusal of a key; "" for none.
func (p KeyPolicy) refuses(key string) flaw {
	switch {
	case p.UUID && !uuidForm.MatchString(key):
		return "The key is not a UUID (RFC 9562)."
	case len(key) < p.MinLength:
		return flaw(fmt.Sprintf("The key has %d bytes; at least %d are required.", len(key), p.MinLength))
	case p.MinEntropy > 0 && entropy(key) < float64(p.MinEntropy):
		return flaw(fmt.Sprintf("The key is too easy to guess: at least %d bits of entropy are required, as a random UUID has them.", p.MinEntropy))
	}
	return ""
}

// uuidForm is that of UUIDs with a version.
var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$`)

// entropy estimates the bits of a key: see KeyPolicy.MinEntropy.
func entropy(key string) (bits float64) {
	var count [256]int
	for i := range len(key) {
		count[key[i]]++
	}
	for _, n := range count {
		if n > 0 {
			bits += float64(n) * math.Log2(float64(len(key))/float64(n))
		}
	}
	return bits
}

// parsePointer returns the names and indexes of a JSON pointer (RFC 6901), nil for "".
func parsePointer(option, pointer string) ([]string, error) {
	if pointer == "" {
		return nil, nil
	}
	rest, ok := strings.CutPrefix(pointer, "/")
	if !ok {
		return nil, misuse.Errorf("stethttp: Options.%s %q is no JSON pointer: it must begin with a slash", option, pointer)
	}
	steps := strings.Split(rest, "/")
	for i, s := range steps {
		plain := strings.NewReplacer("~0", "", "~1", "").Replace(s)
		if strings.Contains(plain, "~") {
			return nil, misuse.Errorf("stethttp: Options.%s %q is no JSON pointer: a tilde is written ~0, and a slash in a name ~1", option, pointer)
		}
		steps[i] = strings.ReplaceAll(strings.ReplaceAll(s, "~1", "/"), "~0", "~")
	}
	return steps, nil
}

// pointed is the value at a pointer in a body.
type pointed struct {
	there  bool
	twice  bool // a name on the way is there more than once
	text   bool
	number bool
	value  string // a string, or the literal of a number
}

// follow returns the value at steps in a body. null, and content that is not JSON, has none.
func follow(body []byte, steps []string) pointed {
	if !json.Valid(body) {
		return pointed{}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	found, err := walk(dec, steps)
	if err != nil {
		return pointed{}
	}
	return found
}

// walk reads one value and returns the value at steps in it.
func walk(dec *json.Decoder, steps []string) (found pointed, err error) {
	if len(steps) == 0 {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil || string(raw) == "null" {
			return pointed{}, err
		}
		found.there = true
		if found.text = json.Unmarshal(raw, &found.value) == nil; !found.text {
			if found.number = json.Unmarshal(raw, new(json.Number)) == nil; found.number {
				found.value = string(raw)
			}
		}
		return found, nil
	}
	t, err := dec.Token()
	if err != nil {
		return pointed{}, err
	}
	open, ok := t.(json.Delim)
	if !ok {
		return pointed{}, nil // a value without members
	}
	seen := 0
	for i := 0; dec.More(); i++ {
		name := strconv.Itoa(i)
		if open == '{' {
			t, err := dec.Token()
			if err != nil {
				return pointed{}, err
			}
			name, _ = t.(string)
		}
		if name != steps[0] {
			var skipped json.RawMessage
			if err := dec.Decode(&skipped); err != nil {
				return pointed{}, err
			}
			continue
		}
		if found, err = walk(dec, steps[1:]); err != nil {
			return pointed{}, err
		}
		seen++
	}
	if _, err := dec.Token(); err != nil {
		return pointed{}, err
	}
	if seen > 1 {
		return pointed{there: true, twice: true}, nil
	}
	return found, nil
}

// readFirst reads the body and looks for the key in it. It is false if the request was
// refused.
func (c *call) readFirst(limit int64) bool {
	if !c.read(limit) {
		return false
	}
	if len(c.r.Header["Content-Encoding"]) == 0 {
		c.pointed = follow(c.sent, c.m.pointer)
	}
	return true
}

// key returns the key of a request, from its header, its body, or both.
func (c *call) key(keys []string) (key string, problem *condition, detail string) {
	m := c.m
	switch {
	case len(keys) > 1:
		return "", &keyRepeated, ""
	case c.pointed.twice:
		return "", &keyRepeated, "A name on the way to " + m.o.KeyPolicy.Pointer + " is in the content more than once."
	case len(keys) == 0 && !c.pointed.there && m.pointer != nil:
		return "", &keyMissing, "Send the header " + m.header + ", or the value at " + m.o.KeyPolicy.Pointer + " in JSON content, with a key that is new for each operation and the same for each retry of it."
	case len(keys) == 0 && !c.pointed.there:
		return "", &keyMissing, "Send the header " + m.header + " with a key that is new for each operation and the same for each retry of it."
	case c.pointed.there && !c.pointed.text:
		return "", &keyInvalid, "The value at " + m.o.KeyPolicy.Pointer + " is not text."
	}
	var why flaw
	if len(keys) == 1 {
		key, why = parseKey(keys[0], m.o.KeyPolicy.Strict, m.o.KeyPolicy.FoldCase)
	}
	if c.pointed.there && why == "" {
		var inBody string
		if inBody, why = checkKey(c.pointed.value, m.o.KeyPolicy.FoldCase); why == "" && len(keys) == 1 && inBody != key {
			return "", &keyRepeated, "The header " + m.header + " and the value at " + m.o.KeyPolicy.Pointer + " in the content are different keys."
		}
		key = inBody
	}
	if why == "" {
		why = m.o.KeyPolicy.refuses(key)
	}
	if why != "" {
		return "", &keyInvalid, string(why)
	}
	return key, nil, ""
}
