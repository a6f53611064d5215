// Package problem writes problem documents (RFC 9457).
package problem

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// MediaType is the media type of a problem document.
const MediaType = "application/problem+json"

// Document is a problem about an operation.
type Document struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Retryable bool   `json:"retryable"`
	Execution string `json:"execution"`           // a name of stet.Execution
	Operation string `json:"operation,omitempty"` // its ID, for operators
}

// Marshal returns the sent form of doc, which must be encodable as JSON.
func Marshal(doc any) []byte {
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err) // documents are of strings, numbers and booleans
	}
	return append(b, '\n')
}

// Write answers with a document of Marshal, which is never to be cached. retryAfter is
// when to ask again; 0 to say nothing of it.
func Write(w http.ResponseWriter, status int, doc []byte, retryAfter time.Duration) {
	h := w.Header()
	h.Set("Content-Type", MediaType)
	h.Set("Cache-Control", "no-store")
	if retryAfter > 0 {
		RetryAfter(h, retryAfter)
	}
	w.WriteHeader(status)
	_, _ = w.Write(doc) // the client may have left
}

// RetryAfter says in h when to ask again, in whole seconds, rounded up (RFC 9110,
// section 10.2.3).
func RetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10))
}
