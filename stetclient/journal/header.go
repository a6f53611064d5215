package journal

import (
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"
)

// exact begins a header whose values are kept as base64, because some are not
// text that JSON can hold: it would replace the bytes.
const exact = '='

// encode returns a header as it is kept, in JSON.
func encode(h http.Header) ([]byte, error) {
	text := true
	raw := make(map[string][][]byte, len(h))
	for name, values := range h {
		text = text && utf8.ValidString(name)
		for _, v := range values {
			text = text && utf8.ValidString(v)
			raw[name] = append(raw[name], []byte(v))
		}
	}
	if text {
		return json.Marshal(h)
	}
	b, err := json.Marshal(raw)
	return append([]byte{exact}, b...), err
}

// decode is the reverse of encode.
func decode(b []byte) (h http.Header, err error) {
	if len(b) == 0 || b[0] != exact {
		if err = json.Unmarshal(b, &h); err != nil {
			return nil, fmt.Errorf("a header in the journal is damaged: %w", err)
		}
		return h, nil
	}
	var raw map[string][][]byte
	if err = json.Unmarshal(b[1:], &raw); err != nil {
		return nil, fmt.Errorf("a header in the journal is damaged: %w", err)
	}
	h = make(http.Header, len(raw))
	for name, values := range raw {
		for _, v := range values {
			h[name] = append(h[name], string(v))
		}
	}
	return h, nil
}
