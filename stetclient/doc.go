// Package stetclient is the client's side of idempotency: it repeats a request
// until there is an outcome, in a way that cannot execute it twice where the
// service honours idempotency keys.
//
//	transport, err := stetclient.New(nil, stetclient.Options{})
//	client := &http.Client{Transport: transport}
//	res, err := client.Post("https://api.example.com/payments", "application/json", body)
//
// Each POST and PATCH is one operation: it gets one random key, and all its
// attempts are the same to the last byte. What is repeated are attempts without
// a response, or with half of one, and the statuses 408, 409, 425, 429 and 5xx
// but for 501 and 505, unless the response is a replay, which is the outcome
// whatever its status, or a problem document says otherwise (RFC 9457; see
// docs/problems.md). 400 and 422 are never repeated. The waits are drawn with
// full jitter, on top of Retry-After (RFC 9110, section 10.2.3), and end with
// the caller's context. A wait that would end too late is not begun.
//
// # What a caller gets
//
// A response is the operation's outcome. InfoOf says whether it is a replay,
// and what it took. Everything else is an *Error, which says whether the
// operation was executed, was not, or may have been. After "may have been
// executed" the key must be kept, and the same request sent under it later; a
// new key would risk a second execution. That also holds for a refusal, such as
// a 401, after an attempt that was lost: it is no outcome, and comes as an
// error.
//
// # Keys
//
// A random key is lost with the process. Where that matters, use a key that can
// be made again, with WithKey and stet.DeriveKey, or a journal.
//
// With Options.Journal, for which package stetclient/journal has one in an
// SQLite file, the key and the request are durable before the first byte is
// sent. After a restart Transport.Resume finishes what was left. WithIntent
// gives an operation a name of the caller's, under which it has one key and one
// outcome however often it is called for.
//
// A call whose operation was not executed leaves its intent in the journal if it
// has a name, or a key of the caller's: Resume will send it, and Journal.Forget
// takes it back. Without either the intent is forgotten, since the caller was
// told, and may be about to call again under a new key.
//
// # Redirects
//
// A 307 or 308 which http.Client follows with the same request does not end the
// operation: it goes on under its key and its intent, and the outcome is that of
// the last response. If the client does not follow it, the intent stays in the
// journal, see Info.Pending. A 301, 302 or 303 of a POST is an outcome, and the
// GET that fetches what it points to is no operation. Transport.Resume does the
// same.
//
// # What net/http does by itself
//
// The standard transport sends a request that has an Idempotency-Key again when
// an idle connection breaks under it, which no policy counts and nobody is told
// of. A Transport keeps it from doing so, but for requests without a body where
// the policy allows retries: there it is one more attempt with the same key.
//
// # Time limits
//
// Policy.MaxElapsed ends the attempts, but does not cut one short that is at
// work: Policy.AttemptTimeout does, or the context, or the RoundTripper below
// (http.Transport.ResponseHeaderTimeout costs least). http.Client.Timeout is for
// all attempts together, and replaces the *Error by one of its own, which for
// stet.ExecutionOf is "may have executed": prefer a context with a deadline.
package stetclient
