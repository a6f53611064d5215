package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Why a delivery is refused, for errors.Is.
var (
	// ErrMalformed: a header is missing or malformed.
	ErrMalformed = errors.New("webhook: malformed")
	// ErrForged: no signature is right.
	ErrForged = errors.New("webhook: no valid signature")
	// ErrStale: the signature is right but too old, or from the future.
	ErrStale = errors.New("webhook: signed too long ago, or in the future")
)

// Tolerance is how far the time of a signature may be from now, where there is
// one.
const Tolerance = 5 * time.Minute

// Limits of what a delivery's headers may hold.
const (
	maxID         = 255 // bytes
	maxSignatures = 16  // looked at in one delivery
)

// Verifier checks who has sent a delivery, and says which message it is.
type Verifier interface {
	// Verify returns the ID of a delivery that was signed by the sender, the same for
	// each delivery of a message: 1 to 255 bytes; and the content, usually the body,
	// which must be the same then too. It compares in constant time. Errors wrap
	// ErrMalformed, ErrForged or ErrStale; they are sent to the caller, and so hold no
	// secret.
	Verify(h http.Header, body []byte, now time.Time) (id string, content []byte, err error)
	// Horizon is how long the sender continues delivering a message.
	Horizon() time.Duration
}

// keyed is what all verifiers with shared secrets are.
type keyed struct {
	secrets [][]byte
	err     error // a secret that cannot be one
	horizon time.Duration
}

func newKeyed(horizon time.Duration, secrets []string, decode func(string) ([]byte, error)) keyed {
	k := keyed{horizon: horizon}
	if len(secrets) == 0 {
		k.err = errors.New("it has no secret")
	}
	for i, s := range secrets {
		secret, err := decode(s)
		if err == nil && len(secret) == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			k.err = fmt.Errorf("secret %d: %w", i+1, err)
		}
		k.secrets = append(k.secrets, secret)
	}
	return k
}

func plain(s string) ([]byte, error) { return []byte(s), nil }

// ready is asked when a handler is made.
func (k keyed) ready() error { return k.err }

// Horizon implements Verifier.
func (k keyed) Horizon() time.Duration { return k.horizon }

// signed reports whether one of the signatures is that of content under one of
// the secrets.
func (k keyed) signed(signatures [][]byte, content ...[]byte) bool {
	good := false
	for _, secret := range k.secrets {
		mac := hmac.New(sha256.New, secret)
		for _, c := range content {
			mac.Write(c)
		}
		sum := mac.Sum(nil)
		for _, s := range signatures {
			good = hmac.Equal(s, sum) || good
		}
	}
	return good && k.err == nil
}

// one returns the only value of a header.
func one(h http.Header, name string) (string, error) {
	values := h.Values(name)
	if len(values) != 1 || values[0] == "" {
		return "", fmt.Errorf("%w: the header %s must be there once", ErrMalformed, name)
	}
	return values[0], nil
}

// checkID requires what can be a key, and excludes the bytes in not.
func checkID(id, not string) error {
	if id == "" || len(id) > maxID || strings.ContainsAny(id, not) {
		return fmt.Errorf("%w: the ID must have 1 to %d bytes, none of them of %q", ErrMalformed, maxID, not)
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return fmt.Errorf("%w: the ID must be visible ASCII", ErrMalformed)
		}
	}
	return nil
}

// fresh checks the time of a signature, in seconds since 1970.
func fresh(timestamp string, now time.Time) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || seconds < 0 {
		return fmt.Errorf("%w: the timestamp is not a number of seconds", ErrMalformed)
	}
	if now.Sub(time.Unix(seconds, 0)).Abs() > Tolerance {
		return ErrStale
	}
	return nil
}

// StandardWebhooks verifies deliveries that follow Standard Webhooks 1.0.0, with
// HMAC-SHA256 signatures (v1). Secrets are as senders show them, in base64 with
// or without the prefix "whsec_"; more than one while a secret is being changed.
//
// An ID with a dot is refused. The signed text is id.timestamp.body, so with a dot one
// signature would also be valid for another ID, timestamp and body.
func StandardWebhooks(secrets ...string) Verifier {
	// The sample schedule of the specification ends after 75 h 35 min.
	return standard{newKeyed(76*time.Hour, secrets, func(s string) ([]byte, error) {
		b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_"))
		if err != nil {
			return nil, errors.New("it is not base64") // err would show a part of it
		}
		return b, nil
	})}
}

type standard struct{ keyed }

// Verify implements Verifier.
func (v standard) Verify(h http.Header, body []byte, now time.Time) (string, []byte, error) {
	id, err := one(h, "Webhook-Id")
	if err == nil {
		err = checkID(id, ".")
	}
	timestamp, terr := one(h, "Webhook-Timestamp")
	list, serr := one(h, "Webhook-Signature")
	if err := errors.Join(err, terr, serr); err != nil {
		return "", nil, err
	}
	var signatures [][]byte
	for _, s := range strings.Fields(list) {
		encoded, ok := strings.CutPrefix(s, "v1,")
		if b, err := base64.StdEncoding.DecodeString(encoded); ok && err == nil && len(signatures) < maxSignatures {
			signatures = append(signatures, b)
		}
	}
	stale := fresh(timestamp, now)
	if errors.Is(stale, ErrMalformed) {
		return "", nil, stale
	}
	if !v.signed(signatures, []byte(id+"."+timestamp+"."), body) {
		return "", nil, ErrForged
	}
	return id, body, stale
}

// Stripe verifies deliveries of Stripe (Stripe-Signature, scheme v1). The ID is
// that of the event, in the body, and the content nothing more: the body counts
// the webhooks that are pending, and so differs between deliveries.
func Stripe(secrets ...string) Verifier {
	return stripe{newKeyed(3*24*time.Hour, secrets, plain)}
}

type stripe struct{ keyed }

// Verify implements Verifier.
func (v stripe) Verify(h http.Header, body []byte, now time.Time) (string, []byte, error) {
	field, err := one(h, "Stripe-Signature")
	if err != nil {
		return "", nil, err
	}
	var timestamp string
	var signatures [][]byte
	for item := range strings.SplitSeq(field, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		switch name {
		case "t":
			if timestamp != "" {
				return "", nil, fmt.Errorf("%w: two timestamps", ErrMalformed)
			}
			timestamp = value
		case "v1":
			if b, err := hex.DecodeString(value); err == nil && len(signatures) < maxSignatures {
				signatures = append(signatures, b)
			}
		}
	}
	stale := fresh(timestamp, now)
	if errors.Is(stale, ErrMalformed) {
		return "", nil, stale
	}
	if !v.signed(signatures, []byte(timestamp+"."), body) {
		return "", nil, ErrForged
	}
	if stale != nil {
		return "", nil, stale
	}
	var event struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&event); err != nil {
		return "", nil, fmt.Errorf("%w: the body is not a JSON object with an id", ErrMalformed)
	}
	return event.ID, []byte(event.ID), checkID(event.ID, "")
}

// GitHub verifies deliveries of GitHub (X-Hub-Signature-256). The ID is that of
// X-GitHub-Delivery, which stays the same when a delivery is repeated.
//
// GitHub signs the body alone, neither its ID nor a time. An attacker who has recorded a
// delivery can send it again under another ID; TLS protects it from being recorded.
func GitHub(secrets ...string) Verifier {
	return github{newKeyed(3*24*time.Hour, secrets, plain)}
}

type github struct{ keyed }

// Verify implements Verifier.
func (v github) Verify(h http.Header, body []byte, _ time.Time) (string, []byte, error) {
	id, err := one(h, "X-Github-Delivery")
	if err == nil {
		err = checkID(id, "")
	}
	field, serr := one(h, "X-Hub-Signature-256")
	if err := errors.Join(err, serr); err != nil {
		return "", nil, err
	}
	signature, err := hex.DecodeString(strings.TrimPrefix(field, "sha256="))
	if err != nil || !v.signed([][]byte{signature}, body) {
		return "", nil, ErrForged
	}
	return id, body, nil
}
