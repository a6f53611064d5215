// Package stetclient is the client's side of idempotency: it repeats a request
// until there is an outcome, in a way that cannot execute it twice where the
// service honours idempotency keys.
//
//	transport, err := stetclient.New(nil, stetclient.Options{})
//	client := &http.Client{Transport: transport}
//	res, err := client.Post("https://api.example.com/payments", "application/json", body)
//
// Each POST and PATCH is one operation. It gets one random key, and all its attempts are
// identical. An attempt is repeated if it got no response or half of one, or the status 408,
// 409, 425, 429 or 5xx other than 501 and 505. A replay is never repeated: it is the
// outcome, whatever its status. A problem document (RFC 9457; see docs/problems.md)
// overrides the status. 400 and 422 are never repeated. Waits are random between zero and a
// bound that doubles (full jitter), and are added to Retry-After (RFC 9110, section 10.2.3).
// They end with the caller's context. A call ends at once if the next wait would end too
// late. A RoundTripper below that returns
// Final(err, stet.NotExecuted) stops retries, as a circuit breaker does.
//
// # Results
//
// A response is the operation's outcome. InfoOf says whether it is a replay, and how many
// attempts were made. Any other result is an *Error. It says whether the operation was
// executed, was not, or may have been. After "may have executed", keep the key and send the
// same request under it later. A new key could execute the operation twice. A refusal, such
// as a 401, after a lost attempt is an error of this kind, not an outcome.
//
// # Keys
//
// A random key is lost with the process. To survive that, derive the key (WithKey and
// stet.DeriveKey), or use a journal.
//
// With Options.Journal, the key and the request are durable before the first byte is sent.
// Package stetclient/journal has a journal in an SQLite file. After a restart,
// Transport.Resume sends the requests that have no outcome. WithIntent names an operation:
// all calls with that name have one key and one outcome.
//
// If an operation was not executed, its intent stays in the journal if the caller named it
// or chose its key. Resume will send it; Journal.Forget removes it. Otherwise the intent is
// removed, because the caller received the error and may call again under a new key.
//
// # Accepted operations
//
// A 202 is an outcome, too: the operation was accepted. Await waits for its final outcome.
//
// # Redirects
//
// If http.Client follows a 307 or 308 with the same request, the request keeps its key.
// With a journal a 307 or 308 is an *Error, because the journal has the first URL: call the
// other URL. A 301, 302 or 303 of a POST is an outcome. The GET that follows it has no key.
//
// # Retries of net/http
//
// The standard transport resends a request with an Idempotency-Key when an idle connection
// breaks. A Transport prevents it, except for requests without a body: those are sent again
// under the same key.
//
// A failed dial means "not executed" only if net/http reports it (httptrace) and reports no
// earlier connection. Otherwise it means "may have executed".
//
// # Time limits
//
// Policy.MaxElapsed stops new attempts. It does not end an attempt in progress:
// Policy.AttemptTimeout, the context and http.Transport.ResponseHeaderTimeout do.
// http.Client.Timeout limits all attempts together, and replaces the *Error by its own. For
// stet.ExecutionOf that error is "may have executed": prefer a context with a deadline.
package stetclient
