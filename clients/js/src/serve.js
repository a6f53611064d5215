// The request path: the operation is named, and the request is read, run or replayed. Express and Fastify differ only around it.

import { isJSON } from './canonical.js';
import { advice, described, kind } from './errors.js';
import { mediaType, requestFingerprint } from './fingerprint.js';
import { parseKey } from './key.js';
import { begin } from './postgres.js';
import { perhaps, problem } from './problem.js';
import { outcomeOf } from './record.js';
import { claimed, claimsOf, fenced, logOnce } from './sidecar.js';
import { Capture, accepts, destroyed, lookup, mute, replayed, send } from './response.js';

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

const running = new WeakMap();

/**
 * Returns a refusal if the request's operation is running, so that this call would be inside it. A response of
 * the inner call, such as in-flight, must not be the outcome of the outer one. The outer one is rolled back.
 */
export function nested(options, req) {
  const tx = running.get(req);
  if (tx === undefined) return undefined;
  const message = 'a protected handler was called inside a protected handler of the same request; it was rolled back';
  tx.late ??= new Error(`stet: ${message}`);
  options.log(message);
  return problem('misconfigured', { base: options.problemBase });
}

/**
 * Runs or replays an operation, and answers. handler(client) is called with a client in the
 * transaction, and its response goes to res. An error that it throws is thrown again, after the rollback;
 * then nothing was sent, and what the framework makes of the error may be stored (see refusal). before is
 * the header that others had set; answering is called before stet itself answers.
 */
export async function serve({ options, operation, req, res, before, handler, answering = () => {} }) {
  const say = (what) => {
    answering();
    send(res, what);
  };
  const refuse = (type, more) => say(problem(type, { base: options.problemBase, ...more }));
  let begun;
  try {
    begun = await begin(options, operation);
  } catch (error) {
    return trouble(options, error, refuse);
  }
  if (begun.action !== 'run') return answer(options, begun, req, say, refuse);
  const { tx } = begun;
  // The sidecar responds to a retry without this middleware, so the whole header is stored.
  const capture = new Capture(res, options.sidecar ? {} : before);
  running.set(req, tx);
  try {
    await run(capture, tx, handler, options);
  } catch (error) {
    running.delete(req);
    if (error === overdue || error === destroyed) {
      const held = options.pool.waitingCount > 0 ? `. ${options.pool.waitingCount} callers wait for a connection of the pool: a handler that takes a second one waits for itself; give that code the handler's client` : '';
      options.log((error === overdue ? `a handler has not ended its response in ${options.timeout} ms; it was rolled back` : 'a handler\'s response was destroyed before its end; it was rolled back') + held);
      tx.abandon();
      capture.retract();
      refuse('response-missing');
      return mute(res);
    }
    await tx.rollback();
    capture.retract();
    refusal({ options, operation, req, res, before, say, refuse });
    throw error;
  }
  try {
    await conclude({ options, operation, tx, capture, req, res, say, refuse });
  } catch (error) {
    await tx.rollback();
    capture.retract();
    throw error;
  } finally {
    running.delete(req);
  }
}

/**
 * Holds back the response that the framework makes of an error, after the writes were undone, and stores it if it is a
 * refusal: 3xx, or 4xx except the statuses of rollsBack. Without a response there is nothing to store.
 */
function refusal({ options, operation, req, res, before, say, refuse }) {
  const capture = new Capture(res, options.sidecar ? {} : before);
  const conclude = async () => {
    await capture.ended;
    const { cut, ...response } = capture.response();
    if (cut || capture.over || options.rollsBack(response.status, (name) => header(res, name))) return capture.send();
    if (response.status < 300) {
      options.log(`an error was answered with the status ${response.status}; it was rolled back, and its response was not sent`);
      capture.retract();
      return refuse('response-missing');
    }
    const { tx, ...row } = await begin(options, operation);
    if (row.action !== 'run') {
      capture.retract();
      return answer(options, row, req, say, refuse); // a retry has come in between
    }
    const done = await tx.commit(outcomeOf(response, options.maxResult));
    if (done.action === 'committed') return capture.send(tx.expires);
    capture.retract();
    return done.action === 'nothing' ? refuse('store-unavailable', { again: 1 }) : answer(options, done, req, say, refuse);
  };
  conclude().catch((error) => {
    capture.retract();
    if (error === destroyed) return res.destroy();
    if (options.sidecar && kind(error) === 'fenced') return say(fenced(options));
    return trouble(options, error, refuse);
  });
}

// conclude commits and sends a response, or rolls back.
async function conclude({ options, operation, tx, capture, req, res, say, refuse }) {
  const { cut, ...response } = capture.response();
  const flaw = capture.over ? 'response-too-large' : cut ? 'response-invalid' : undefined;
  if (flaw !== undefined) {
    if (cut) options.log('a response is not as long as its Content-Length says; it was rolled back');
    await tx.rollback();
    capture.retract();
    return refuse(flaw, cut ? { detail: 'The response is not as long as it says. The operation had no effect.' } : undefined);
  }
  if (options.rollsBack(response.status, (name) => header(res, name))) {
    await tx.rollback();
    return capture.send();
  }
  if (!tx.used) {
    const unused = `${operation.name || 'a handler'} is protected and never used its client, so its writes are a commit of their own, and a crash between the two makes a retry write again: write by the handler's third argument`;
    if (options.requireTransaction) {
      options.log(`${unused}; it was rolled back`);
      await tx.rollback();
      capture.retract();
      return refuse('misconfigured');
    }
    logOnce(options, unused);
  }
  if (!options.sidecar) misplaced(options, operation, response);
  let done;
  try {
    done = await tx.commit(outcomeOf(response, options.maxResult));
  } catch (error) {
    await tx.rollback();
    if (!options.sidecar && kind(error) === 'fenced') throw new Error('stet: the handler has ended its transaction itself, by COMMIT or ROLLBACK; nothing was settled, and a retry runs again', { cause: error });
    if (kind(error) === 'other' || error === tx.late) throw error;
    capture.retract();
    if (options.sidecar && kind(error) === 'fenced') return say(fenced(options));
    return trouble(options, error, refuse);
  }
  if (done.action === 'committed') return capture.send(tx.expires);
  capture.retract();
  if (done.action === 'nothing') return refuse('store-unavailable', { again: 1 });
  return answer(options, done, req, say, refuse);
}

// misplaced logs once for each operation what middleware inside of the handler has added that suits this request alone.
function misplaced(options, { name }, { headers }) {
  const inside = (field) => lookup(headers, field)?.join();
  if (inside('content-encoding')) {
    logOnce(options, `${name} has a Content-Encoding that is stored with its response, so a retry that does not accept it is refused with 406: compress in front of the handler, or in front of the service`);
  }
  if (![undefined, '', '*'].includes(inside('access-control-allow-origin'))) {
    logOnce(options, `${name} has an Access-Control-Allow-Origin that is stored with its response, so a replay to another origin has none: set CORS headers before the handler`);
  }
}

const overdue = new Error('stet: the handler has not ended its response in time');
const longWait = 1000; // milliseconds after which the pool is looked at

// crowded logs once that handlers run while callers wait for a connection of a pool that has no free one.
function crowded(options) {
  if (options.pool.waitingCount > 0 && options.pool.idleCount === 0) {
    logOnce(options, 'a handler has run for a second while callers wait for a connection of the pool: a handler that takes a second connection waits for itself; give that code the handler\'s client');
  }
}

// run calls the handler, and waits for the end of its response.
async function run(capture, tx, handler, options) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(reject, options.timeout, overdue);
  });
  const look = setTimeout(crowded, longWait, options);
  const called = (async () => handler(tx.client))();
  const failed = new Promise((_, reject) => called.catch(reject));
  failed.catch((error) => {
    if (tx.committed) tx.options.log('a handler failed after its outcome was committed; the outcome is unchanged', described(error));
    else tx.late ??= error; // until the COMMIT it counts
  });
  try {
    await Promise.race([capture.ended, failed, late]);
    // Statements that the handler sends in the same tick are still in time.
    await Promise.race([new Promise(setImmediate), failed]);
  } finally {
    clearTimeout(timer);
    clearTimeout(look);
  }
}

function header(res, name) {
  const value = res.getHeader(name);
  return value === undefined ? undefined : String(value);
}

// trouble responds when the store failed before anything was committed.
function trouble(options, error, refuse) {
  switch (kind(error)) {
    case 'unavailable':
      options.log('the store cannot be used; nothing was executed', described(error));
      return refuse('store-unavailable', { again: 1 });
    case 'unreadable':
      options.log('a stored response cannot be read', described(error));
      return refuse('result-unreadable', perhaps);
    default:
      options.log(`an operation could not be run; nothing was executed${advice(options, error)}`, described(error));
      return refuse('misconfigured');
  }
}

// answer sends the stored outcome.
function answer(options, row, req, say, refuse) {
  switch (row.action) {
    case 'in_flight':
      return refuse('in-flight', { again: 1 });
    case 'mismatch':
      return refuse('mismatch');
    case 'expired':
      return refuse('result-expired', row.state === 'failed' ? perhaps : undefined);
    case 'replay':
      break;
    default:
      return refuse('outcome-unknown');
  }
  const { headers, body, expires } = row;
  let { status, contentType } = row;
  if (status === 0) { // an outcome that is no response
    if (row.state === 'failed') {
      const failed = problem('operation-failed', { base: options.problemBase });
      return say({ ...failed, headers: { ...failed.headers, ...(expires && { 'Idempotency-Expires': expires }), 'Idempotent-Replayed': 'true' } });
    }
    status = body.length > 0 ? 200 : 204;
    contentType ??= body.length > 0 ? 'application/octet-stream' : null;
  }
  const codings = lookup(headers, 'content-encoding') ?? [];
  if (!accepts(req.headersDistinct['accept-encoding'], codings)) return refuse('coding-not-acceptable');
  say(replayed({ status, headers, contentType, body, expires }, req.headers));
}
