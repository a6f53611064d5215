package journal

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// encode returns a header in JSON. The values are base64, because a value can have bytes
// that JSON text cannot.
func encode(h http.Header) ([]byte, error) {
	raw := make(map[string][][]byte, len(h))
	for name, values := range h {
		for _, v := range values {
			raw[name] = append(raw[name], []byte(v))
		}
	}
	return json.Marshal(raw)
}

// decode is the reverse of encode.
func decode(b []byte) (http.Header, error) {
	var raw map[string][][]byte
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf("a header in the journal is damaged: %w", err)
	}
	if len(raw) == 0 {
		return nil, nil
	}
	h := make(http.Header, len(raw))
	for name, values := range raw {
		for _, v := range values {
			h[name] = append(h[name], string(v))
		}
	}
	return h, nil
}
