// A request before its operation begins: the operation is named, and the body is read, parsed and digested.

import { isJSON } from './canonical.js';
import { described } from './errors.js';
import { mediaType, requestFingerprint } from './fingerprint.js';
import { parseKey } from './key.js';
import { problem } from './problem.js';
import { claimed, claimsOf } from './sidecar.js';

/** Returns the operation of a request from its header: { operation } or { refusal }. request is the framework's, req is Node's. */
export async function named(options, request, req, name) {
  const claims = claimsOf(req);
  if (options.sidecar || claims.length > 0) return claimed(options, claims);
  const refusal = (type, more) => ({ refusal: problem(type, { base: options.problemBase, ...more }) });
  const fields = req.headersDistinct[options.header.toLowerCase()] ?? [];
  if (fields.length === 0) {
    return refusal('key-missing', { detail: `Send the header ${options.header} with a key that is new for each operation and the same for each retry of it.` });
  }
  if (fields.length > 1) return refusal('key-repeated');
  const { key, flaw } = parseKey(fields[0]);
  if (flaw !== undefined) return refusal('key-invalid', { detail: flaw });
  let scope;
  try {
    scope = await options.scope(request);
  } catch (error) {
    options.log('the option scope failed; nothing was executed', described(error));
    return refusal('scope-failed');
  }
  if (scope === undefined || scope === null || scope === '') return refusal('scope-missing');
  if (typeof scope !== 'string' || !scope.isWellFormed()) { // half of a surrogate pair is U+FFFD in UTF-8, whichever it is: scopes would be one
    options.log('the option scope returned something that is not a string, or is not well-formed; nothing was executed');
    return refusal('misconfigured');
  }
  if (Buffer.byteLength(scope) > 1024) return refusal('scope-too-long');
  return { operation: { scope, key, name: label(options.name?.(request) ?? name), ref: label(options.ref?.(request) ?? '').replace(/^(?:sealed:)+/, '') } };
}

// label returns a text for operators: without control characters, at most 255 bytes.
function label(text) {
  let fits = String(text).replace(/\p{Cc}/gu, '').toWellFormed();
  while (Buffer.byteLength(fits) > 255) fits = fits.slice(0, -1).toWellFormed();
  return fits;
}

/** Reads a body up to a limit: { body } or { refusal }. */
export async function read(options, req, stream) {
  const refusal = (type, detail) => ({ refusal: problem(type, { base: options.problemBase, detail }) });
  const large = Number(req.headers['content-length'] ?? 0) > options.maxBody;
  try {
    const body = large ? undefined : await collected(stream, options.maxBody);
    if (body !== undefined) return { body };
  } catch {
    return refusal('body-unreadable');
  }
  stream.resume();
  const got = refusal('body-too-large', `The request body is larger than ${options.maxBody} bytes.`);
  got.refusal.headers.Connection = 'close'; // so that a client does not send all of it
  return got;
}

// collected returns the bytes of a stream; undefined if there are more than limit. The stream is not
// destroyed then, because that would close the connection.
function collected(stream, limit) {
  return new Promise((resolve, reject) => {
    const chunks = [];
    let size = 0;
    const end = (settle, value) => {
      for (const [event, listener] of listeners) stream.off(event, listener);
      settle(value);
    };
    const listeners = Object.entries({
      data(chunk) {
        size += chunk.length;
        if (size > limit) end(resolve, undefined);
        else chunks.push(Buffer.from(chunk));
      },
      end: () => end(resolve, Buffer.concat(chunks)),
      error: (error) => end(reject, error),
      close: () => end(reject, new Error('the body ended early')),
    });
    for (const [event, listener] of listeners) stream.on(event, listener);
  });
}

/** Parses a body of JSON: { value } or { refusal }; a value of undefined if it is of another type. */
export function parsed(options, req, body) {
  if (body.length === 0 || !isJSON(mediaType(req.headers['content-type'] ?? ''))) return {};
  const refusal = (type) => ({ refusal: problem(type, { base: options.problemBase }) });
  if (!/^(?:identity)?$/i.test(req.headers['content-encoding'] ?? '')) return refusal('media-type-unsupported');
  try {
    return { value: JSON.parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body)) };
  } catch {
    return refusal('body-invalid');
  }
}

/** The fingerprint of a request whose target is as it was sent; the sidecar has made its own. */
export function fingerprinted(options, req, target, body) {
  if (options.sidecar) return undefined;
  return requestFingerprint({ method: req.method, target, headers: req.headersDistinct, body }, options.canonicalize);
}
