package stethttp

import (
	"strings"

	"github.com/dunglas/httpsfv"
)

const (
	// maxKey is the greatest length of a key in bytes, without its quotes.
	maxKey = 255
	// maxKeyField bounds the header field of a quoted key, parameters
	// included, before it is parsed.
	maxKeyField = 4096
)

// flaw is the reason for the refusal of a key, for the client; "" for none.
type flaw string

const (
	keyEmpty    flaw = "The key is empty."
	keyLong     flaw = "The key is longer than 255 bytes."
	keyByte     flaw = "The key has a byte that is not visible ASCII."
	keyComma    flaw = "The key has a comma and is not in double quotes: it may be two keys that something on the way has joined."
	keyQuoted   flaw = "The key begins with a quote but is not a structured field string (RFC 9651)."
	keyUnquoted flaw = "The key must be in double quotes: a structured field string (RFC 9651)."
)

// parseKey returns the key of a header field value, or why it is refused.
func parseKey(field string, strict, foldCase bool) (string, flaw) {
	key := strings.Trim(field, " \t") // not part of a field's value: RFC 9110, section 5.5
	switch {
	case key == "":
		return "", keyEmpty
	case key[0] == '"':
		var ok bool
		if len(key) > maxKeyField {
			return "", keyLong
		}
		if key, ok = parseQuoted(key); !ok {
			return "", keyQuoted
		}
	case strict:
		return "", keyUnquoted
	case strings.Contains(key, ","): // proxies join fields of one name: RFC 9110, section 5.3
		return "", keyComma
	}
	return checkKey(key, foldCase)
}

// checkKey returns the key of a text, or why it is refused.
func checkKey(key string, foldCase bool) (string, flaw) {
	if key == "" {
		return "", keyEmpty
	}
	if len(key) > maxKey {
		return "", keyLong
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] >= 0x7f {
			return "", keyByte
		}
	}
	if foldCase {
		key = strings.ToLower(key)
	}
	return key, ""
}

// parseQuoted parses an Item of type String; its parameters are ignored.
func parseQuoted(field string) (string, bool) {
	item, err := httpsfv.UnmarshalItem([]string{field})
	if err != nil {
		return "", false
	}
	s, ok := item.Value.(string)
	return s, ok
}
