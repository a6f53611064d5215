import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { canonicalJSON, fingerprint, requestFingerprint } from '@stet-go/stet';
import { claimParts, claimText, fieldsOf, head, identity } from '../node_modules/@stet-go/stet/src/record.js';

const vectors = JSON.parse(readFileSync(process.env.STET_VECTORS, 'utf8'));
const bytes = (hex) => Buffer.from(hex, 'hex');

test('fingerprints equal those of Go', () => {
  assert.ok(vectors.fingerprints.length >= 5);
  for (const v of vectors.fingerprints) assert.equal(fingerprint(v.parts.map(bytes), v.version).toString('hex'), v.fingerprint);
});

test('IDs and lock numbers equal those of Go', () => {
  assert.ok(vectors.locks.length >= 5);
  for (const v of vectors.locks) {
    const got = identity(v, { scope: v.scope, key: v.key, fingerprint: bytes(v.fingerprint) }, v.namespace);
    assert.deepEqual([got.id.toString('hex'), got.scope.toString('hex'), got.run, Number(got.printLock), Number(got.print), got.wait],
      [v.id, v.scope_digest, v.run_lock, v.print_lock, v.print, v.wait_lock]);
  }
});

test('stored header fields equal those of SQL', () => {
  assert.ok(vectors.heads.length >= 5);
  for (const v of vectors.heads) {
    const fields = {};
    for (const [name, value] of v.fields) (fields[name.toLowerCase()] ??= []).push(value);
    assert.equal(head(fields)?.toString('hex') ?? null, v.head);
  }
  assert.throws(() => head({ vary: Array(4096).fill('a') }), /more than 4096/);
  for (const flaw of ['\x00', '\x08', '\n', '\x1f', '\x7f', '\x80', '\x9f']) assert.throws(() => head({ 'x-name': ['a', `b${flaw}c`] }), /X-Name has a control character/);
  assert.equal(head({ 'x-name': ['\t \xa0\xff'] }).toString('utf8', 1), '{"X-Name": ["\\t \xa0\xff"]}');
});

test('header fields that are not lists of strings are left to stet_head', () => {
  const stored = (text) => Buffer.from(`\x03${text}`).toString('hex');
  assert.deepEqual(fieldsOf(stored('{"A": ["b"]}')), { A: ['b'] });
  assert.deepEqual(fieldsOf(null), {});
  for (const text of ['', '{', '[]', 'null', '{"A":"x"}', '{"A":[1]}']) assert.equal(fieldsOf(stored(text)), undefined, text);
  for (const bytes of ['01ff', '037b2241223a5b22ff225d7d']) assert.equal(fieldsOf(bytes), undefined); // of Go; not UTF-8
});

test('a claim that is parsed and written again is unchanged', () => {
  const text = `c1.${'0f'.repeat(32)}.${'a1'.repeat(16)}.00000000000000ff`;
  assert.deepEqual(claimParts(text).fence, '255');
  assert.equal(claimText(claimParts(text)), text);
});

test('canonical JSON equals that of Go', () => {
  assert.ok(vectors.canonical.length >= 30);
  for (const v of vectors.canonical) {
    const got = canonicalJSON(...v.exclude)('application/json', bytes(v.body));
    assert.equal(got.toString('latin1'), bytes(v.form).toString('latin1'), `${bytes(v.body)} without ${v.exclude}`);
  }
});

test('fingerprints of requests equal those of Go', () => {
  assert.ok(vectors.requests.length >= 15);
  for (const v of vectors.requests) {
    const headers = {};
    for (const [name, value] of v.headers) (headers[name.toLowerCase()] ??= []).push(value);
    const got = requestFingerprint({ method: v.method, target: v.target, headers, body: bytes(v.body) }, v.canonical ? canonicalJSON() : undefined);
    assert.equal(got.toString('hex'), v.fingerprint, JSON.stringify(v));
  }
});

test('depth is bounded as in Go, and the time that hostile bodies take', () => {
  const form = canonicalJSON('/x/y', '/0/0');
  const canonical = (text) => form('application/json', Buffer.from(text)).toString();
  const nested = (n, inside = '') => '['.repeat(n) + inside + ']'.repeat(n);
  assert.equal(canonical(` ${nested(10_000)}`).length, 'null'.length + 4, 'what a pointer names is left out');
  const plain = canonicalJSON();
  assert.equal(plain('application/json', Buffer.from(` ${nested(10_000)}`)).toString(), nested(10_000));
  assert.equal(plain('application/json', Buffer.from(` ${nested(10_001)}`)).toString(), ` ${nested(10_001)}`);
  const n = 1 << 20;
  for (const body of [
    '['.repeat(n), nested(9_000, '0,'.repeat(n / 2) + '0'), '{"b":'.repeat(9_000) + `"${'x'.repeat(n / 2)}"` + ',"a":0}'.repeat(9_000),
    `["${'\\u0061'.repeat(n / 6)}"]`, '9'.repeat(n), `{${Array.from({ length: n / 14 }, (_, i) => `"${String(n - i).padStart(8, '0')}":0`)}}`,
  ]) {
    const begun = process.cpuUsage();
    canonical(body);
    plain('application/json', Buffer.from(body));
    const { user } = process.cpuUsage(begun);
    assert.ok(user < 5_000_000, `${body.slice(0, 20)}: ${user / 1000} ms`);
  }
});

test('a malformed pointer is refused', () => {
  for (const pointer of ['', 'a', '/~2', '#/a', 7]) assert.throws(() => canonicalJSON(pointer), TypeError);
});

test('other media types are left alone', () => {
  for (const [type, changed] of [['application/json', true], ['Application/JSON;x=y', true], ['application/vnd.api+json', true], ['text/plain', false], ['', false], ['application/jsonp', false]]) {
    assert.equal(canonicalJSON()(type, Buffer.from('{ }')).toString() === '{}', changed, type);
  }
});
