// The attempts of one operation: the same request, with the same key, until there is an answer that is final.

import { keyField } from './request.js';
import { executionOf, executionOfFailure, intact, classify, mayHave, never, notExecuted, together } from './resolution.js';

/** The error of an attempt that took too long. */
const tooLong = () => new DOMException('stet: the attempt took longer than the option attemptTimeout', 'TimeoutError');

/** A signal that ends with another one, and when end is called; done frees it. */
export function linked(signal) {
  const own = new AbortController();
  const end = () => own.abort(signal.reason);
  if (signal?.aborted) end();
  signal?.addEventListener('abort', end);
  return { signal: own.signal, end: (reason) => own.abort(reason), done: () => signal?.removeEventListener('abort', end) };
}

/** Reads a body of at most max bytes: null if it is longer. */
export async function readUpTo(response, max) {
  if (response.body === null) return new Uint8Array(0);
  const reader = response.body.getReader();
  const chunks = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.length;
    if (length > max) {
      reader.cancel().catch(() => {}); // the rest is not needed
      return null;
    }
    chunks.push(value);
  }
  const all = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

/** The header of a request of an entry: the stored fields, the secret ones, and the fields of the option authorize. */
export async function headersOf(c, entry, secrets, signal) {
  const headers = new Headers(entry.headers);
  for (const [name, value] of secrets) headers.set(name, value);
  if (c.authorize) {
    const given = await before(signal, c.authorize({ operation: entry.named ? entry.name : undefined, method: entry.method, url: entry.url }));
    for (const [name, value] of new Headers(given ?? {})) headers.set(name, value);
  }
  return headers;
}

// before is what a promise resolves to, unless a signal ends before it.
async function before(signal, promise) {
  let end;
  const ended = new Promise((_, reject) => signal.addEventListener('abort', (end = () => reject(signal.reason))));
  try {
    signal.throwIfAborted();
    return await Promise.race([promise, ended]);
  } finally {
    signal.removeEventListener('abort', end);
  }
}

// exchange makes one attempt: { answer, resolution } or, without a whole response, { error, resolution }.
async function exchange(c, entry, secrets, signal) {
  const limit = linked(signal);
  const timer = setTimeout(() => limit.end(tooLong()), c.attemptTimeout);
  let response, begun = false;
  try {
    const headers = await headersOf(c, entry, secrets, limit.signal);
    headers.set(c.header, keyField(entry.key, c.raw));
    begun = true;
    const { method, credentials, mode, redirect } = entry;
    response = await c.send(entry.url, {
      method, headers, signal: limit.signal, cache: 'no-store', ...(entry.body.length > 0 && { body: entry.body }),
      ...(credentials && { credentials }), ...(mode && { mode }), ...(redirect && { redirect }),
    });
    const body = await readUpTo(response, c.maxResponse);
    if (!intact(response, body)) {
      response = undefined;
      throw new Error('stet: the response has neither a body nor Content-Length: 0, and over plain HTTP that may be a header that broke off');
    }
    const answer = { status: response.status, statusText: response.statusText, headers: response.headers, body: body ?? new Uint8Array(0), whole: body !== null, redirected: response.redirected, url: response.url };
    return { answer, resolution: classify(answer, c.replayedHeader) };
  } catch (error) {
    if (!begun) return { error, resolution: { execution: notExecuted, retry: true, after: 0 } };
    const resolution = { execution: entry.redirect === 'error' ? executionOfFailure(error) : mayHave, retry: true, after: 0 };
    if (response !== undefined) { // it said something, and broke off
      const { status, headers, redirected } = response;
      resolution.execution = redirected ? mayHave : executionOf(status, headers, headers.get(c.replayedHeader) === 'true', null);
      resolution.retry = !never(status);
    }
    return { error, resolution };
  } finally {
    clearTimeout(timer);
    limit.done();
  }
}

/** Waits; an end of the lost connection ends the wait early, if early is true. */
export function sleep(ms, signal, early = false) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      globalThis.removeEventListener?.('online', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener('abort', end);
    if (early) globalThis.addEventListener?.('online', end);
    if (signal?.aborted) end();
  });
}

/**
 * Sends an entry until its answer is final, or the policy ends it: then there is a reason. known has
 * the state of earlier attempts.
 */
export async function attempts(c, entry, { secrets, signal, known }) {
  const began = performance.now();
  const all = { execution: known, earlier: known, attempts: 0, reason: undefined, answer: undefined, resolution: undefined, error: undefined };
  for (;;) {
    if (signal?.aborted) return { ...all, reason: 'aborted', error: signal.reason };
    all.attempts++;
    const { answer, resolution, error } = await exchange(c, entry, secrets, signal);
    Object.assign(all, { answer, resolution, error, earlier: all.execution });
    all.execution = resolution.stands ? resolution.execution : together(all.earlier, resolution.execution);
    const wait = resolution.after + Math.random() * Math.min(c.cap, c.base * 2 ** (all.attempts - 1)); // full jitter
    let reason;
    if (signal?.aborted) reason = 'aborted';
    else if (!resolution.retry) reason = resolution.elsewhere ? 'refused' : undefined;
    else if (all.attempts >= c.attempts) reason = 'attempts';
    else if (performance.now() - began + wait > c.elapsed) reason = 'time';
    else if (tooOld(c, entry, wait)) reason = 'stale';
    else reason = 'again';
    c.tell({ operation: entry.named ? entry.name : undefined, attempt: all.attempts, status: answer?.status, error, execution: resolution.execution, ...(reason === 'again' && { retryIn: wait }) });
    if (reason !== 'again') return { ...all, reason };
    await sleep(wait, signal, resolution.after === 0);
  }
}

const clockSlack = 60_000; // how far in the future an entry may have been made, by a clock that was adjusted

/** The service may have forgotten the key of so old a request. */
export function tooOld(c, entry, inAWhile = 0) {
  const age = Date.now() - entry.created;
  return age + inAWhile > c.maxAge || age < -clockSlack;
}
