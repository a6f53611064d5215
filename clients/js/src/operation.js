// One call without a framework: a function runs once for a scope and a key, in one transaction with its result.

import { canonicalJSON } from './canonical.js';
import { troubled, withoutOutcome } from './decide.js';
import { kind } from './errors.js';
import { fingerprint } from './fingerprint.js';
import { OperationError, PermanentError } from './operationerror.js';
import { checked, report } from './options.js';
import { begin } from './postgres.js';
import { outcomeOf } from './record.js';
import { finished, unended } from './running.js';
import { logOnce } from './sidecar.js';

const settings = ['namespace', 'previous', 'claimPrevious', 'class', 'keep', 'tombstone', 'timeout', 'maxResult', 'mode', 'schema', 'table'];
const own = new Set([...settings, 'log', 'scope', 'key', 'payload', 'name', 'ref']);
const none = Buffer.alloc(33); // the fingerprint of a call without a payload
const type = 'application/json', failureType = 'application/problem+json';
const canonical = canonicalJSON();

/**
 * Runs fn once for a scope and a key, in a transaction that stores its result. client is a Pool of pg, or a Client without an
 * open transaction. It resolves to { value, replayed }.
 */
export async function operation(client, options, fn) {
  if (typeof fn !== 'function') throw new TypeError('stet: operation needs a function: operation(pool, { scope, key, payload }, async (op) => …)');
  const named = name(client, options);
  const o = optionsOf(options);
  let begun;
  try {
    begun = await begin(o, named);
  } catch (error) {
    throw failure(troubled(o, error), error);
  }
  if (begun.action !== 'run') return stored(begun);
  const { tx } = begun;
  try {
    const result = await finished(tx, o, (async () => fn({ client: tx.client, scope: named.scope, key: named.key }))());
    const body = result === undefined ? undefined : written(result, 'the result of the function');
    if (!tx.used) logOnce(o, `${named.name || 'an operation'} never used its client, so its writes are a commit of their own, and a crash between the two makes a retry write again: write by op.client`);
    return await committed(o, tx, { contentType: body === undefined ? null : type, body: Buffer.from(body ?? '') }, false);
  } catch (error) {
    const late = unended(o, tx, error);
    if (late !== undefined) throw failure(late, error);
    await tx.rollback();
    if (!(error instanceof PermanentError)) throw error;
    return permanent(o, named, error);
  }
}

// committed stores an outcome, and returns it to its caller as to every later one.
async function committed(o, tx, outcome, failed) {
  let done;
  try {
    done = await tx.commit({ ...outcomeOf({ headers: {}, ...outcome }, o.maxResult), status: null, failed });
  } catch (error) {
    if (kind(error) === 'other' || error === tx.late) throw error;
    throw failure(troubled(o, error), error);
  }
  if (done.action !== 'committed') return stored(done);
  return { ...read({ state: failed ? 'failed' : 'completed', status: 0, ...outcome }), replayed: false };
}

// permanent stores the failure of a function whose writes are undone.
async function permanent(o, named, error) {
  const body = Buffer.from(JSON.stringify({ title: 'Operation failed', detail: error.message, execution: 'not executed', retryable: false, ...(error.details !== undefined && { details: error.details }) }));
  const { tx, ...row } = await begin(o, named).catch((cause) => { throw failure(troubled(o, cause), cause); });
  if (row.action !== 'run') return stored(row); // a retry has come in between
  return committed(o, tx, { contentType: failureType, body }, true);
}

function stored(row) {
  if (row.action === 'replay') return { ...read(row), replayed: true };
  const [problem, more] = withoutOutcome(row);
  throw new OperationError(problem, more);
}

// read returns the value of an outcome, or throws its failure.
function read({ state, status, contentType, body }) {
  if (state === 'failed' || status >= 400) throw failureOf(contentType, body);
  if (body.length === 0) return { value: undefined };
  const json = /^application\/(?:[^;]+\+)?json *(?:;|$)/i.test(contentType ?? '');
  try {
    if (json) return { value: JSON.parse(body) };
  } catch { /* it is compressed, or no JSON in spite of its type */ }
  throw new OperationError('result-unreadable', { detail: 'another adapter has stored the outcome, and it is not JSON', execution: 'executed' });
}

function failureOf(contentType, body) {
  if (contentType !== failureType) return new OperationError('operation-failed');
  const { detail, execution, details } = JSON.parse(body);
  return new OperationError('operation-failed', { detail, execution, details });
}

// failure is the error of an answer of the HTTP adapters.
function failure({ problem, body }, cause) {
  return new OperationError(problem, { ...JSON.parse(body), cause });
}

// name checks the options that identify the operation.
function name(client, { scope, key, payload, name: label = '', ref = '', ...rest }) {
  for (const option of Object.keys(rest)) if (!own.has(option)) throw new TypeError(`stet: operation has no option ${option}`);
  for (const [what, text] of Object.entries({ scope, key })) {
    if (typeof text !== 'string' || text === '' || !text.isWellFormed() || Buffer.byteLength(text) > 1024) throw new TypeError(`stet: the option ${what} must be well-formed text of 1 to 1024 bytes`);
  }
  for (const [what, text] of Object.entries({ name: label, ref })) {
    if (typeof text !== 'string' || !text.isWellFormed() || Buffer.byteLength(text) > 255 || /\p{Cc}/u.test(text)) throw new TypeError(`stet: the option ${what} must be well-formed text of at most 255 bytes without control characters`);
  }
  if (ref.startsWith('sealed:')) throw new TypeError('stet: the option ref must not begin with sealed:');
  return { scope, key, name: label, ref, fingerprint: fingerprintOf(payload), pool: poolOf(client) };
}

// fingerprintOf is that of the bytes or the text, or of the canonical JSON of another value.
function fingerprintOf(payload) {
  if (payload === undefined) return none;
  if (typeof payload === 'string') return fingerprint([payload]);
  if (ArrayBuffer.isView(payload)) return fingerprint([Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength)]);
  if (payload instanceof ArrayBuffer) return fingerprint([Buffer.from(payload)]);
  return fingerprint([canonical(type, Buffer.from(written(payload, 'the option payload')))], 2);
}

// plain reports whether an object has no class, in any realm.
function plain(object) {
  const prototype = Object.getPrototypeOf(object);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

// written is the JSON of a value. JSON.stringify writes a Map, a Set and a Blob as {}, so that any two would be equal.
function written(value, subject) {
  const wrong = (of = subject) => new TypeError(`stet: ${of} cannot be written as JSON`);
  const text = JSON.stringify(value, (_, part) => {
    if (part !== null && typeof part === 'object' && !Array.isArray(part) && Object.keys(part).length === 0 && !plain(part)) throw wrong(`${subject} has a ${part.constructor?.name}, and it`);
    return part;
  });
  if (text === undefined) throw wrong();
  return text;
}

// poolOf is a pool, or a Client as a pool of one.
function poolOf(client) {
  if (typeof client?.connect !== 'function') throw new TypeError('stet: operation needs a Pool or a Client of pg');
  if (typeof client.query !== 'function' || client.totalCount !== undefined) return client;
  let ended;
  const connect = async () => {
    const before = turns.get(client);
    turns.set(client, new Promise((resolve) => { ended = resolve; }));
    await before;
    return client;
  };
  return { single: true, connect, release: () => ended() };
}

const turns = new WeakMap(); // the end of the last operation of a Client: the next one waits for it

const byLog = new WeakMap(); // the checked options by their settings: the intervals of each are read once
const most = 100;

function optionsOf({ log = report, ...options }) {
  const of = Object.fromEntries(settings.filter((setting) => options[setting] !== undefined).map((setting) => [setting, options[setting]]));
  const id = JSON.stringify(of);
  let known = byLog.get(log);
  if (known === undefined || known.size >= most) byLog.set(log, known = new Map());
  if (!known.has(id)) known.set(id, checked({ pool: unused, scope: String, log, ...of }));
  return known.get(id);
}

const unused = { connect: () => Promise.reject(new Error('stet: an operation has its own pool')) };
