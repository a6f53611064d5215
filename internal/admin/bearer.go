package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// Challenge is the WWW-Authenticate field of a response to a request without a token, or with
// a wrong token (RFC 6750, section 3).
func Challenge(r *http.Request) string {
	if r != nil && r.Header.Get("Authorization") != "" {
		return `Bearer realm="stet", error="invalid_token"`
	}
	return `Bearer realm="stet"`
}

// Bearer reports whether a request has the token. It compares digests, which have
// one length, so that the time it takes tells nothing. "" is no token.
func Bearer(r *http.Request, token string) bool {
	fields := r.Header.Values("Authorization")
	if len(fields) != 1 || token == "" {
		return false
	}
	scheme, given, _ := strings.Cut(fields[0], " ")
	got, want := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}
