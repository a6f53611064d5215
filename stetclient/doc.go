// Package stetclient is the client's side of idempotency: it repeats a request
// until there is an outcome, in a way that cannot execute it twice where the
// service honours idempotency keys.
//
//	transport, err := stetclient.New(nil, stetclient.Options{})
//	client := &http.Client{Transport: transport}
//	res, err := client.Post("https://api.example.com/payments", "application/json", body)
//
// Each POST and PATCH is one operation: it gets one random key, and all its attempts
// are the same to the last byte. An attempt is repeated if it got no response or half
// of one, or the status 408, 409, 425, 429 or 5xx other than 501 and 505. A replay is
// never repeated: it is the outcome, whatever its status. A problem document (RFC 9457;
// see docs/problems.md) overrides the status. 400 and 422 are never repeated. The waits
// are drawn with full jitter, on top of Retry-After (RFC 9110, section 10.2.3), and end
// with the caller's context. A call ends at once if the next wait would end too late.
//
// # What a caller gets
//
// A response is the operation's outcome. InfoOf says whether it is a replay, and what
// it took. Everything else is an *Error, which says whether the operation was executed,
// was not, or may have been. After "may have been executed" the key must be kept, and
// the same request sent under it later; a new key would risk a second execution. A
// refusal, such as a 401, after a lost attempt is an error of this kind, not an
// outcome.
//
// # Keys
//
// A random key is lost with the process. Where that matters, use a key that can
// be made again, with WithKey and stet.DeriveKey, or a journal.
//
// With Options.Journal, for which package stetclient/journal has one in an SQLite file,
// the key and the request are durable before the first byte is sent. After a restart
// Transport.Resume finishes what was left. WithIntent names an operation: all calls
// with that name have one key and one outcome.
//
// If an operation was not executed, its intent stays in the journal if the caller named
// it or chose its key: Resume will send it, and Journal.Forget removes it. Otherwise
// the intent is removed, because the caller has got the error and may call again under
// a new key.
//
// # Accepted, and done later
//
// A 202 is an outcome, too: the operation was accepted. Await waits for its final
// outcome, and asks as often as the service wants.
//
// # Redirects
//
// A 307 or 308 which http.Client follows with the same request does not end the
// operation: it continues under its key and its intent, and the outcome is that of
// the last response. If the client does not follow it, the intent stays in the
// journal, see Info.Pending. A 301, 302 or 303 of a POST is an outcome, and the
// GET that fetches what it points to is no operation. Transport.Resume does the
// same.
//
// # What net/http does by itself
//
// The standard transport sends a request that has an Idempotency-Key again when an idle
// connection breaks; no policy counts that, and the caller does not learn of it. A
// Transport prevents it, except for requests without a body where the policy allows
// retries: there it is one more attempt with the same key.
//
// # What is below
//
// A failed dial means "not executed" only if net/http reports it (httptrace) and
// reports no earlier connection. With a RoundTripper that retries by itself, or does
// not report, it means "may have executed".
//
// # Time limits
//
// Policy.MaxElapsed stops new attempts, but does not end one in progress:
// Policy.AttemptTimeout does, or the context, or the RoundTripper below
// (http.Transport.ResponseHeaderTimeout costs least). http.Client.Timeout is for all
// attempts together, and replaces the *Error by one of its own, which for
// stet.ExecutionOf is "may have executed": prefer a context with a deadline.
package stetclient
