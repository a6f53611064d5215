// The request of an operation: the same bytes with every attempt.

import { digest } from './digest.js';

const maxName = 255; // characters of an operation's name
const taken = new Set(['method', 'headers', 'body', 'credentials', 'mode', 'redirect', 'signal', 'operation', 'key', 'wait']);

/** A new key: a UUID of version 4 (RFC 9562). Pages without TLS have no crypto.randomUUID. */
export function mint(crypto = globalThis.crypto) {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

/** The value of the key's header: a structured field String (RFC 9651), or the key unchanged. */
export const keyField = (key, raw) => (raw ? key : `"${key.replace(/["\\]/g, '\\$&')}"`);

/** An error if no call can have this operation's name. */
export function checkName(name) {
  if (typeof name !== 'string' || name === '' || name.length > maxName) {
    throw new TypeError(`stet: the option operation must be a text of 1 to ${maxName} characters; leave it out for an operation without a name`);
  }
}

function check(init, headerName) {
  for (const name of Object.keys(init)) {
    if (!taken.has(name)) throw new TypeError(`stet: fetch does not take the option ${name}, because it would be lost after a reload`);
  }
  const { method, operation, key, mode, redirect } = init;
  if (typeof method !== 'string' || /^(?:GET|HEAD)$/i.test(method)) {
    throw new TypeError(`stet: fetch is for requests that change something, such as POST; for ${method ?? 'GET'} use the global fetch`);
  }
  if (operation !== undefined) checkName(operation);
  if (key !== undefined && !(typeof key === 'string' && /^[!-~]{1,255}$/.test(key))) throw new TypeError('stet: the option key must have 1 to 255 characters of visible ASCII');
  if (mode === 'no-cors' || mode === 'navigate') throw new TypeError(`stet: with mode ${mode} the answer cannot be read, nor a key be sent`);
  if (redirect === 'manual') throw new TypeError('stet: with redirect manual a page cannot read the answer; use follow or error');
  if (new Headers(init.headers).has(headerName)) throw new TypeError(`stet: the header ${headerName} is made by the client; give the option key`);
}

// sizeOf is the size of a body, if it is known before the body is read.
const sizeOf = (body) => body?.size ?? body?.byteLength ?? body?.length ?? 0;

/**
 * Returns the entry of a call for the journal, and separately the secret headers. It throws a
 * TypeError or a RangeError if the request cannot be an operation.
 */
export async function capture(url, init, o) {
  check(init, o.header);
  if (typeof ReadableStream !== 'undefined' && init.body instanceof ReadableStream) {
    throw new TypeError('stet: a stream cannot be sent again; give a Blob, an ArrayBuffer or text');
  }
  const tooLarge = (size) => new RangeError(`stet: the body has ${size} bytes, and the client takes ${o.maxBody}: see the option maxBody`);
  if (sizeOf(init.body) > o.maxBody) throw tooLarge(sizeOf(init.body));
  const at = new URL(url, globalThis.document?.baseURI ?? globalThis.location?.href);
  at.hash = '';
  const { headers, body: sent, credentials, mode, redirect } = init;
  const request = new Request(at, { method: init.method.toUpperCase(), headers, body: sent, ...(credentials && { credentials }), ...(mode && { mode }), ...(redirect && { redirect }) });
  const body = new Uint8Array(await request.arrayBuffer());
  if (body.length > o.maxBody) throw tooLarge(body.length);
  const kept = [], secrets = [];
  for (const field of request.headers) (o.secretHeaders.has(field[0]) ? secrets : kept).push(field);
  const key = init.key ?? mint();
  return {
    secrets,
    entry: {
      name: init.operation ?? key, named: init.operation !== undefined, key, method: request.method, url: at.href,
      headers: kept, credentials, mode, redirect, body, digest: await digest(describe(request, at, body)),
      created: Date.now(), execution: 'may-have-executed', answer: null, told: null,
    },
  };
}

// describe returns the method, URL and body, by which requests are compared. The boundary of a multipart body
// changes with each reload, and is left out.
function describe(request, at, body) {
  const [, quoted, bare] = /^multipart\/[^;]+;.*?boundary=(?:"([^"]+)"|([^;\s]+))/i.exec(request.headers.get('Content-Type') ?? '') ?? [];
  const head = `${request.method}\n${at.href}\n`;
  const boundary = quoted ?? bare;
  if (boundary === undefined) return join(new TextEncoder().encode(head), body);
  const pieces = new TextDecoder('latin1').decode(body).split(boundary);
  return new TextEncoder().encode(`${head}${pieces.length}\n${pieces.join('')}`);
}

function join(a, b) {
  const all = new Uint8Array(a.length + b.length);
  all.set(a);
  all.set(b, a.length);
  return all;
}
