// The parts of a stored record that a client computes: digests, lock numbers and header fields (docs/sql.md).

import { randomUUID } from 'node:crypto';
import { sha256 } from './fingerprint.js';

// digest is SHA-256 of parts, each after its length in four bytes.
function digest(...parts) {
  const all = [];
  for (const part of parts) {
    const bytes = typeof part === 'string' ? Buffer.from(part) : part;
    const length = Buffer.allocUnsafe(4);
    length.writeUInt32BE(bytes.length);
    all.push(length, bytes);
  }
  return sha256(Buffer.concat(all));
}

/**
 * Returns the ID of an operation, and the numbers of its locks as text: run is the lock of the key. The pair
 * printLock and print publishes the fingerprint of the request that runs. A caller that waits for the key holds the lock wait.
 * Without a namespace it is the one of new operations.
 */
export function identity({ schema, table, namespaces }, { scope: owner, key, fingerprint }, namespace = namespaces[0]) {
  const scope = digest('stet scope 1', namespace, owner);
  const id = Buffer.concat([scope.subarray(0, 8), digest('stet id 2', namespace, owner, key).subarray(0, 24)]);
  return {
    id, scope, fingerprint,
    run: String(digest('run', schema, table, id).readBigInt64BE()),
    printLock: String(digest('finger', schema, table, id).readInt32BE(4)),
    print: String(digest(fingerprint).readInt32BE(4)),
    wait: waitLock({ schema, table }, id),
  };
}

/** The ID of an operation in hexadecimal, as operators know it. It is that of the record that was found, which may have the other name. */
export const idOf = (options, operation) => (operation.claim ? claimParts(operation.claim) : operation.found ?? identity(options, operation)).id.toString('hex');

/** The number of the lock that callers hold which wait for the operation of an ID. */
export const waitLock = ({ schema, table }, id) => String(id.readBigInt64BE(8) ^ digest('wait', schema, table).readBigInt64BE());

/** The channel on which the end of a run is notified. */
export const channel = ({ schema, table }) => `stet_${digest('channel', schema, table).toString('hex', 0, 8)}`;

/** A new owner of a claim. Node draws the bytes of many UUIDs at a time. */
export const newOwner = () => Buffer.from(randomUUID().replaceAll('-', ''), 'hex');

/** The text of a claim. */
export const claimText = ({ id, owner, fence }) => `c1.${id.toString('hex')}.${owner.toString('hex')}.${BigInt(fence).toString(16).padStart(16, '0')}`;

/** The parts of a claim's text, which must be one. */
export function claimParts(text) {
  const [, id, owner, fence] = text.split('.');
  return { id: Buffer.from(id, 'hex'), owner: Buffer.from(owner, 'hex'), fence: String(BigInt(`0x${fence}`)) };
}

/** The first eight bytes of a digest of parts, as a signed number. */
export const numberOf = (...parts) => digest(...parts).readBigInt64BE();

const left = new Set(['Connection', 'Content-Length', 'Date', 'Keep-Alive', 'Te', 'Trailer', 'Transfer-Encoding', 'Upgrade']);
const maxFields = 4096;
const wrong = (message) => Object.assign(new RangeError(`stet: ${message}`), { code: 'ST001' });
const control = /[\0-\x08\x0a-\x1f\x7f-\x9f]/;

/** Header fields (lists of values by name) in their stored form: the bytes that stet_fields makes; null if there are none. */
export function head(headers) {
  const fields = [];
  let n = 0;
  for (const [name, values] of Object.entries(headers)) {
    const canonical = name.toLowerCase().replace(/(^|-)[a-z]/g, (letter) => letter.toUpperCase());
    if (canonical.startsWith('Proxy-') || left.has(canonical)) continue;
    if (values.some((value) => control.test(value))) throw wrong(`the header field ${canonical} has a control character`);
    fields.push([canonical, values]);
    n += 1 + values.length;
  }
  if (n === 0) return null;
  if (n > maxFields) throw wrong(`the response has more than ${maxFields} header fields and values`);
  fields.sort(([a], [b]) => a.length - b.length || (a < b ? -1 : 1)); // as jsonb sorts them
  const list = (values) => values.map((value) => JSON.stringify(value)).join(', ');
  return Buffer.from(`\x03{${fields.map(([name, values]) => `${JSON.stringify(name)}: [${list(values)}]`).join(', ')}}`);
}

/** The outcome to store for a response; without the response if that is too large. */
export function outcomeOf({ status, headers, contentType, body }, maxResult) {
  const stored = head(headers);
  const size = body.length + (stored?.length ?? 0) + Buffer.byteLength(contentType ?? '');
  if (size > maxResult) return { status: null, headers: {}, contentType: null, head: null, body: null, gone: true };
  return { status, headers, contentType, head: stored, body, gone: false };
}

const strict = new TextDecoder('utf-8', { fatal: true });

/** The header fields of a stored head, in hexadecimal; undefined if stet_head must read it, which returns those of Go and refuses others. */
export function fieldsOf(stored) {
  if (!stored) return {};
  if (!stored.startsWith('03')) return undefined;
  try {
    const known = JSON.parse(strict.decode(Buffer.from(stored, 'hex').subarray(1)));
    const listed = known !== null && typeof known === 'object' && !Array.isArray(known)
      && Object.values(known).every((values) => Array.isArray(values) && values.every((value) => typeof value === 'string'));
    return listed ? known : undefined;
  } catch {
    return undefined;
  }
}
