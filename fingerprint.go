package stet

import "github.com/stet-go/stet/store"

// NewFingerprint returns the fingerprint of parts, each length-prefixed: for a message its
// type and payload, for a request its method, path, query, content type and body. It is
// store.NewFingerprint; store.NewCanonicalFingerprint is for parts that were brought into a
// canonical form.
func NewFingerprint(parts ...[]byte) store.Fingerprint { return store.NewFingerprint(parts...) }
