// The client, in Node over a journal in memory. test/browser has what takes a browser.

import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import { test } from 'node:test';
import { createClient, memoryJournal } from '@stet-go/stet/client';
import { lost, reply, service } from './answers.js';
import { shop } from './shop.js';

const quick = { attempts: 4, base: 1, cap: 2 };

const problem = (status, retryable, execution, headers = {}) => reply(status, { 'Content-Type': 'application/problem+json', ...headers }, JSON.stringify({ type: 'about:blank', status, retryable, execution }));
const clientOf = (options = {}) => createClient({ journal: memoryJournal(), ...quick, ...options });
const pay = { method: 'POST', body: '{"amount":42}', headers: { 'Content-Type': 'application/json' } };
const text = async (answer) => `${answer.response?.status} ${await answer.response?.text()}`;
const brief = ({ execution, settled, reason, attempts }) => ({ execution, settled, reason, attempts });

test('one operation has one key, and the same bytes in every attempt', async (t) => {
  const { url, requests } = await service(t, lost, reply(500), lost, reply(201, {}, 'paid'));
  const answer = await clientOf().fetch(`${url}/payments`, pay);
  assert.deepEqual(brief(answer), { execution: 'executed', settled: true, reason: 'outcome', attempts: 4 });
  assert.equal(await text(answer), '201 paid');
  assert.match(requests[0].key, /^"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"$/);
  for (const request of requests) assert.deepEqual({ key: request.key, body: request.body, type: request.headers['content-type'] }, { key: requests[0].key, body: pay.body, type: 'application/json' });
});

const copied = { 'Idempotency-Execution': 'not executed' };
const stored = { 'Idempotency-Expires': 'Sat, 01 Jan 2000 12:00:00 GMT', ...copied };

// What a response means, as in stetclient: the response that comes every time, and its reading.
for (const [what, answer, want] of [
  ['201', reply(201), { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['400', reply(400), { execution: 'may-have-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['401', reply(401), { execution: 'not-executed', settled: false, reason: 'refused', attempts: 1 }],
  ['403', reply(403), { execution: 'not-executed', settled: false, reason: 'refused', attempts: 1 }],
  ['404', reply(404), { execution: 'may-have-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['409', reply(409), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['429', reply(429), { execution: 'not-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['500', reply(500), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['501', reply(501), { execution: 'may-have-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['503', reply(503), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['503 with Retry-After', reply(503, { 'Retry-After': '0' }), { execution: 'not-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['503 for longer than the client waits', reply(503, { 'Retry-After': '3600' }), { execution: 'not-executed', settled: false, reason: 'time', attempts: 1 }],
  ['a replayed 500', reply(500, { 'Idempotent-Replayed': 'true' }), { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a replayed problem', problem(500, false, 'may have executed', { 'Idempotent-Replayed': 'true' }), { execution: 'may-have-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a replayed problem that could be retried', problem(503, true, 'not executed', { 'Idempotent-Replayed': 'true' }), { execution: 'not-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a 429 that stands', reply(429, { 'Idempotency-Execution': 'executed' }), { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a problem passed on of another operation', problem(409, true, 'not executed', { 'Idempotency-Execution': 'executed' }), { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a replay of a refusal without effect', reply(409, { 'Idempotent-Replayed': 'true', 'Idempotency-Execution': 'not executed' }), { execution: 'not-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a 200 with "not executed" of another service', reply(200, copied), { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a 409 with "not executed" of another service', reply(409, copied), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['a 422 with "not executed" of another service', reply(422, copied), { execution: 'may-have-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a 500 with "not executed" of another service', reply(500, copied), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['a 429 with "not executed" of another service', reply(429, copied), { execution: 'not-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['in-flight with "not executed" of another service', problem(409, true, 'may have executed', copied), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ...[200, 409, 422, 500].map((status) => [`a stored ${status} with "not executed"`, reply(status, stored), { execution: 'not-executed', settled: true, reason: 'outcome', attempts: 1 }]),
  ['a stored retryable problem with "not executed"', problem(500, true, 'may have executed', stored), { execution: 'not-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a replay with "not executed" that breaks off', (res) => res.writeHead(409, { 'Content-Length': 9, 'Idempotent-Replayed': 'true', ...copied }).write('paid', () => res.socket.destroy()), { execution: 'not-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['mismatch', problem(422, false, 'not executed'), { execution: 'not-executed', settled: false, reason: 'refused', attempts: 1 }],
  ['in-flight', problem(409, true, 'may have executed'), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['outcome-unknown', problem(504, true, 'may have executed'), { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['store-unavailable', problem(503, true, 'not executed'), { execution: 'not-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['result-expired', problem(410, false, 'executed'), { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a retryable 400', problem(400, true, 'not executed'), { execution: 'not-executed', settled: false, reason: 'refused', attempts: 1 }],
  ['a problem that says something else', problem(401, false, 'perhaps'), { execution: 'may-have-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a problem that cannot be read', reply(403, { 'Content-Type': 'application/problem+json' }, '{'), { execution: 'may-have-executed', settled: true, reason: 'outcome', attempts: 1 }],
  ['a broken connection', lost, { execution: 'may-have-executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['a 201 that breaks off', (res) => res.writeHead(201, { 'Content-Length': 9 }).write('paid', () => res.socket.destroy()), { execution: 'executed', settled: false, reason: 'attempts', attempts: 4 }],
  ['a response that is too large', reply(201, {}, 'x'.repeat(2 << 20)), { execution: 'executed', settled: true, reason: 'gone', attempts: 1 }],
]) {
  test(`a response: ${what}`, async (t) => {
    const { url, requests } = await service(t, answer);
    const client = clientOf();
    const got = await client.fetch(url, { ...pay, operation: 'o' });
    assert.deepEqual(brief(got), want);
    assert.equal(requests.length, want.attempts);
    const pending = (await client.pending()).map(({ settled, execution }) => ({ settled, execution }));
    assert.deepEqual(pending, want.execution === 'not-executed' && !want.settled ? [] : [{ settled: want.settled, execution: want.execution }]);
  });
}

test('a refusal after a lost attempt is no outcome', async (t) => {
  const { url, requests } = await service(t, lost, reply(401), reply(201, {}, 'paid'));
  const client = clientOf();
  assert.deepEqual(brief(await client.fetch(url, { ...pay, operation: 'o' })), { execution: 'may-have-executed', settled: false, reason: 'refused', attempts: 2 });
  assert.equal(await text(await client.fetch(url, { ...pay, operation: 'o' })), '201 paid');
  assert.equal(new Set(requests.map(({ key }) => key)).size, 1);
});

test('a stored refusal after a lost attempt is the outcome', async (t) => {
  for (const headers of [stored, { 'Idempotent-Replayed': 'true', ...copied }]) {
    const { url, requests } = await service(t, lost, reply(409, headers), reply(201, {}, 'paid'));
    const client = clientOf();
    assert.deepEqual(brief(await client.fetch(url, { ...pay, operation: 'o' })), { execution: 'not-executed', settled: true, reason: 'outcome', attempts: 2 });
    assert.equal((await client.fetch(url, { ...pay, operation: 'o' })).response.status, 409);
    assert.equal(requests.length, 2);
  }
});

test('an operation that was not executed leaves the journal, and its name gets another key', async (t) => {
  const { url, requests } = await service(t, reply(401), reply(201, {}, 'paid'));
  const client = clientOf();
  assert.equal((await client.fetch(url, { ...pay, operation: 'o' })).execution, 'not-executed');
  assert.equal(await text(await client.fetch(url, { ...pay, body: 'corrected', operation: 'o' })), '201 paid');
  assert.notEqual(requests[0].key, requests[1].key);
});

test('a connection that is refused executes nothing, where no redirect can have gone before it', async (t) => {
  const { url } = await service(t, reply(201));
  const server = http.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  const dead = `http://127.0.0.1:${port}`;
  assert.deepEqual(brief(await clientOf().fetch(dead, { ...pay, redirect: 'error' })), { execution: 'not-executed', settled: false, reason: 'attempts', attempts: 4 });
  assert.equal((await clientOf().fetch(dead, pay)).execution, 'may-have-executed');
  void url;
});

test('the refusal of a redirected request does not describe the operation', async (t) => {
  const { url } = await service(t, (res, req) => (req.method === 'POST' ? reply(303, { Location: '/receipt' }) : reply(401))(res));
  assert.deepEqual(brief(await clientOf().fetch(url, pay)), { execution: 'may-have-executed', settled: false, reason: 'refused', attempts: 1 });
});

test('Retry-After is waited for', async (t) => {
  const { url } = await service(t, reply(503, { 'Retry-After': '1' }), reply(201));
  const began = performance.now();
  assert.equal((await clientOf().fetch(url, pay)).settled, true);
  assert.ok(performance.now() - began >= 1000);
});

test('a Retry-After that is a date counts from the date of the answer', async (t) => {
  const date = (s) => new Date(Date.UTC(2001, 0, 1, 0, 0, s)).toUTCString();
  const { url } = await service(t, reply(503, { Date: date(0), 'Retry-After': date(3600) }));
  const answer = await clientOf().fetch(url, pay);
  assert.equal(answer.retryAfter, 3600_000);
  assert.equal(answer.reason, 'time');
});

test('waits are drawn evenly from 0 to a bound that doubles', async (t) => {
  const { url } = await service(t, reply(500));
  const waits = [];
  const random = t.mock.method(Math, 'random', () => 0.5);
  await clientOf({ attempts: 5, base: 2, cap: 10, observe: ({ retryIn }) => waits.push(retryIn) }).fetch(url, pay);
  random.mock.restore();
  assert.deepEqual(waits, [1, 2, 4, 5, undefined]);
});

test('calls with one name have one outcome, and it is sent once', async (t) => {
  const { url, requests } = await service(t, reply(201, { 'X-Payment': '1' }, 'paid'));
  const client = clientOf();
  const answers = await Promise.all(Array.from({ length: 5 }, () => client.fetch(url, { ...pay, operation: 'o' })));
  for (const answer of answers) {
    assert.equal(answer.response.headers.get('X-Payment'), '1');
    assert.equal(await text(answer), '201 paid');
  }
  assert.deepEqual(answers.map(({ replayed }) => replayed).sort(), [false, true, true, true, true]);
  assert.equal(requests.length, 1);
});

test('a name with another request is a mismatch, before and after its outcome', async (t) => {
  const { url, requests } = await service(t, lost, lost, lost, lost, reply(201));
  const client = clientOf();
  await client.fetch(url, { ...pay, operation: 'o' });
  assert.deepEqual(brief(await client.fetch(url, { ...pay, body: 'other', operation: 'o' })), { execution: 'may-have-executed', settled: false, reason: 'mismatch', attempts: 0 });
  assert.equal((await client.fetch(url, { ...pay, operation: 'o' })).settled, true);
  assert.deepEqual(brief(await client.fetch(`${url}/elsewhere`, { ...pay, operation: 'o' })), { execution: 'executed', settled: false, reason: 'mismatch', attempts: 0 });
  assert.equal((await client.fetch(url, { ...pay, operation: 'o', key: 'another' })).reason, 'mismatch');
  assert.equal(requests.length, 5);
});

test('corrected input of a refused form is another operation, with another key', async (t) => {
  const document = { 'Content-Type': 'application/problem+json' };
  const own = JSON.stringify({ type: 'https://shop.example/problems/amount', title: 'Amount is negative' });
  const stets = JSON.stringify({ type: 'x', title: 'x', retryable: false, execution: 'executed' });
  for (const [status, key, headers = {}, body = 'no'] of [[422, 'another'], [400, 'another'], [422, 'another', document, own], [409, 'the same', document, stets], [201, 'the same'], [404, 'the same']]) {
    const { url, requests } = await service(t, reply(status, headers, body), reply(201, {}, 'paid'));
    const client = clientOf();
    await client.fetch(url, { ...pay, body: 'amount=-1', operation: 'o' });
    assert.equal((await client.fetch(url, { ...pay, body: 'amount=-1', operation: 'o' })).replayed, true);
    const corrected = await client.fetch(url, { ...pay, body: 'amount=1', operation: 'o' });
    if (key === 'another') {
      assert.equal(await text(corrected), '201 paid');
      assert.notEqual(requests[0].key, requests[1].key);
    } else {
      assert.deepEqual([corrected.reason, requests.length], ['mismatch', 1]);
    }
  }
});

test('a client without IndexedDB can be made, and fails when it is used', async () => {
  assert.equal(globalThis.indexedDB, undefined);
  const answer = await createClient().fetch('http://127.0.0.1:1/', pay);
  assert.deepEqual(brief(answer), { execution: 'not-executed', settled: false, reason: 'journal', attempts: 0 });
  assert.match(answer.error.message, /there is no IndexedDB here/);
});

test('a form is the same request with any boundary', async (t) => {
  const { url, requests } = await service(t, lost, lost, lost, lost, reply(201, {}, 'paid'));
  const client = clientOf();
  const form = () => {
    const data = new FormData();
    data.append('amount', '42');
    data.append('receipt', new Blob([Uint8Array.of(0, 128, 255)]), 'r.bin');
    return data;
  };
  await client.fetch(url, { method: 'POST', body: form(), operation: 'o' });
  assert.equal(await text(await client.fetch(url, { method: 'POST', body: form(), operation: 'o' })), '201 paid');
  assert.equal(new Set(requests.map(({ body }) => body)).size, 1);
});

test('resume finishes open operations with the same key, and confirmed outcomes are removed', async (t) => {
  const { url, requests } = await service(t, lost, reply(201, {}, 'paid'));
  const client = clientOf({ attempts: 1 });
  assert.equal((await client.fetch(url, pay)).execution, 'may-have-executed');
  const [left] = await client.pending();
  assert.deepEqual({ method: left.method, url: left.url, execution: left.execution, settled: left.settled }, { method: 'POST', url: `${url}/`, execution: 'may-have-executed', settled: false });
  await assert.rejects(client.forget(left.operation), /has no outcome/);
  const [answer] = await client.resume();
  assert.equal(await text(answer), '201 paid');
  assert.equal(requests[0].key, requests[1].key);
  assert.equal((await client.pending())[0].settled, true);
  assert.equal(await text((await client.resume())[0]), '201 paid');
  await answer.told();
  assert.deepEqual(await client.pending(), []);
  assert.deepEqual(await client.resume(), []);
  assert.equal(requests.length, 2);
});

test('secrets are not kept: authorize gives them to each attempt, and to resume', async (t) => {
  const { url, requests } = await service(t, lost, lost, lost, reply(201));
  const journal = memoryJournal();
  const secret = { Authorization: 'Bearer one', 'X-Api-Key': 'two', 'X-Kept': 'three' };
  await createClient({ journal, ...quick, attempts: 1, secretHeaders: ['X-Api-Key'] }).fetch(url, { ...pay, headers: secret });
  assert.equal(JSON.stringify(await journal.list()).match(/one|two/), null);
  await createClient({ journal, ...quick, attempts: 1 }).resume();
  await createClient({ journal, ...quick, attempts: 2, authorize: async () => ({ Authorization: 'Bearer new' }) }).resume();
  assert.deepEqual(requests.map(({ headers }) => [headers.authorization, headers['x-api-key'], headers['x-kept']]),
    [['Bearer one', 'two', 'three'], [undefined, undefined, 'three'], ['Bearer new', undefined, 'three'], ['Bearer new', undefined, 'three']]);
  const all = memoryJournal();
  await createClient({ journal: all, ...quick, attempts: 1, keepSecrets: true }).fetch(url, { ...pay, headers: secret });
  assert.match(JSON.stringify(await all.list()), /Bearer one/);
});

test('authorize that fails sends nothing', async (t) => {
  const { url, requests } = await service(t, reply(201));
  const answer = await clientOf({ authorize: () => { throw new Error('signed out'); } }).fetch(url, pay);
  assert.deepEqual(brief(answer), { execution: 'not-executed', settled: false, reason: 'attempts', attempts: 4 });
  assert.equal(answer.error.message, 'signed out');
  assert.equal(requests.length, 0);
});

test('authorize that does not answer is given up', async (t) => {
  const { url, requests } = await service(t, reply(201));
  let asked = 0;
  const answer = await clientOf({ attemptTimeout: 500, authorize: () => (asked++ === 0 ? new Promise(() => {}) : {}) }).fetch(url, pay);
  assert.deepEqual(brief(answer), { execution: 'executed', settled: true, reason: 'outcome', attempts: 2 });
  assert.equal(requests.length, 1);
});

test('the journal is bounded, and a full one is an error', async (t) => {
  const { url, requests } = await service(t, reply(201, {}, 'paid'));
  const client = clientOf({ journal: memoryJournal({ maxEntries: 2, maxBytes: 40 }) });
  const first = await client.fetch(url, pay);
  const second = await client.fetch(url, { ...pay, operation: 'named' });
  assert.deepEqual(brief(await client.fetch(url, pay)), { execution: 'not-executed', settled: false, reason: 'journal-full', attempts: 0 });
  await second.told();
  assert.equal((await client.fetch(url, pay)).reason, 'journal-full'); // the name keeps its outcome
  await first.told();
  assert.equal((await client.fetch(url, { ...pay, body: 'x'.repeat(41) })).reason, 'journal-full');
  assert.equal((await client.fetch(url, pay)).settled, true);
  await client.forget('named');
  assert.equal((await client.fetch(url, { ...pay, operation: 'named' })).replayed, false);
  assert.equal(requests.length, 4);
});

test('an operation that was shown is removed after keep', async (t) => {
  const { url, requests } = await service(t, reply(201, {}, 'paid'));
  t.mock.timers.enable({ apis: ['Date'], now: 1e12 });
  const client = clientOf({ journal: memoryJournal({ keep: 1000 }) });
  await (await client.fetch(url, { ...pay, operation: 'o' })).told();
  t.mock.timers.setTime(1e12 + 1000);
  assert.equal((await client.fetch(url, { ...pay, operation: 'o' })).replayed, true);
  t.mock.timers.setTime(1e12 + 1001);
  assert.equal((await client.fetch(url, { ...pay, operation: 'o' })).replayed, false);
  assert.equal(requests.length, 2);
});

test('an old operation is not sent again, also after the clock was set back', async (t) => {
  const { url, requests } = await service(t, lost, reply(201));
  t.mock.timers.enable({ apis: ['Date'], now: 1e12 });
  const client = clientOf({ attempts: 1, maxAge: 1000 });
  await client.fetch(url, { ...pay, operation: 'o' });
  for (const now of [1e12 + 1001, 1e12 - 60_001]) {
    t.mock.timers.setTime(now);
    assert.deepEqual(brief(await client.fetch(url, { ...pay, operation: 'o' })), { execution: 'may-have-executed', settled: false, reason: 'stale', attempts: 0 });
  }
  assert.equal(requests.length, 1);
  await assert.rejects(client.forget('o'), /unsettled: true/);
  await client.forget('o', { unsettled: true });
  assert.deepEqual(await client.pending(), []);
});

test('a journal that fails: nothing is sent, and a request of an earlier page may have executed', async (t) => {
  const { url, requests } = await service(t, reply(201));
  const journal = memoryJournal();
  const add = t.mock.method(journal, 'add', async () => { throw new Error('disk'); });
  const client = clientOf({ journal });
  assert.deepEqual(brief(await client.fetch(url, pay)), { execution: 'not-executed', settled: false, reason: 'journal', attempts: 0 });
  assert.equal((await client.fetch(url, { ...pay, operation: 'o' })).execution, 'may-have-executed'); // of an earlier page
  t.mock.method(journal, 'remove', async () => { throw new Error('disk'); });
  assert.equal((await client.fetch(url, pay)).execution, 'may-have-executed'); // resume may find it
  assert.equal(requests.length, 0);
  add.mock.restore();
  t.mock.method(journal, 'settle', async () => { throw new Error('disk'); });
  const answer = await client.fetch(url, pay);
  assert.deepEqual([answer.settled, answer.error.message], [true, 'disk']);
});

test('a tab that lost its turn does not throw away the key that another one sends', async (t) => {
  let second, first, arrived;
  const both = new Promise((resolve) => (second = resolve)), begun = new Promise((resolve) => (arrived = resolve));
  const { url, requests } = await service(t, async (res) => { arrived(); await both; reply(401)(res); }, async (res) => { second(); await first; reply(201, {}, 'paid')(res); });
  const journal = memoryJournal();
  journal.exclusive = (name, signal, fn) => fn(); // leases that have run out
  const client = clientOf({ journal });
  first = client.fetch(url, { ...pay, operation: 'o' });
  await begun;
  const answers = await Promise.all([first, client.fetch(url, { ...pay, operation: 'o' })]);
  assert.deepEqual(answers.map(brief), [{ execution: 'may-have-executed', settled: false, reason: 'refused', attempts: 1 }, { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 }]);
  assert.equal(await text(await client.fetch(url, { ...pay, operation: 'o' })), '201 paid');
  assert.equal(requests.length, 2);
});

test('a tab begins anew if another tab has ended its entry', async (t) => {
  const { url, requests } = await service(t, reply(201, {}, 'paid'));
  const journal = memoryJournal(), other = clientOf({ journal });
  await (await other.fetch(url, { ...pay, operation: 'o' })).told();
  const begin = t.mock.method(journal, 'begin', async (name) => { begin.mock.restore(); await other.forget(name).catch(() => {}); return undefined; });
  journal.exclusive = (name, signal, fn) => fn();
  assert.deepEqual(brief(await clientOf({ journal }).fetch(url, { ...pay, operation: 'o' })), { execution: 'executed', settled: true, reason: 'outcome', attempts: 1 });
  assert.equal(requests.length, 2);
});

test('a signal ends the attempts and the waits', async (t) => {
  const { url } = await service(t, reply(500));
  const caller = new AbortController();
  const answer = clientOf({ base: 100_000, cap: 100_000, observe: () => caller.abort() }).fetch(url, { ...pay, signal: caller.signal });
  assert.deepEqual(brief(await answer), { execution: 'may-have-executed', settled: false, reason: 'aborted', attempts: 1 });
  assert.deepEqual(brief(await clientOf().fetch(url, { ...pay, signal: AbortSignal.abort() })), { execution: 'not-executed', settled: false, reason: 'aborted', attempts: 0 });
});

test('an attempt that takes too long is given up', async (t) => {
  const { url, requests } = await service(t, () => {}, reply(201));
  assert.equal((await clientOf({ attemptTimeout: 200 }).fetch(url, pay)).attempts, 2);
  assert.equal(requests.length, 2);
});

test('wrong calls and options are errors, before anything is kept', async () => {
  const client = clientOf();
  for (const [init, want] of [
    [{}, /such as POST/], [{ method: 'GET' }, /such as POST/], [{ ...pay, keepalive: true }, /keepalive/], [{ ...pay, operation: '' }, /operation/], [{ ...pay, key: 'a b' }, /key/],
    [{ ...pay, mode: 'no-cors' }, /no-cors/], [{ ...pay, redirect: 'manual' }, /manual/], [{ ...pay, wait: -1 }, /wait/], [{ ...pay, headers: { 'idempotency-key': 'k' } }, /option key/],
    [{ ...pay, body: new ReadableStream() }, /stream/], [{ ...pay, body: 'x'.repeat((1 << 20) + 1) }, /maxBody/], [{ ...pay, body: new Blob(['x'.repeat((1 << 20) + 1)]) }, /maxBody/],
  ]) await assert.rejects(client.fetch('http://127.0.0.1:1/', init), want);
  await assert.rejects(client.fetch('http://user:secret@127.0.0.1:1/', pay), TypeError);
  assert.deepEqual(await client.pending(), []);
  for (const options of [{ attempts: 0 }, { base: NaN }, { retries: 3 }, { authorize: 'Bearer' }, { header: 'a b' }]) {
    assert.throws(() => createClient({ journal: memoryJournal(), ...options }), TypeError);
  }
  assert.throws(() => memoryJournal({ maxEntries: 0 }), /maxEntries/);
});

test('a digest made without crypto.subtle is SHA-256, and a key made without crypto.randomUUID is a UUID', async () => {
  const { digest } = await import(new URL('client/digest.js', import.meta.resolve('@stet-go/stet/client')).href);
  const { mint } = await import(new URL('client/request.js', import.meta.resolve('@stet-go/stet/client')).href);
  for (let length = 0; length < 200; length++) {
    const bytes = randomBytes(length);
    assert.equal(await digest(bytes, null), createHash('sha256').update(bytes).digest('hex'));
  }
  assert.match(mint({ getRandomValues: (bytes) => bytes.fill(255) }), /^ffffffff-ffff-4fff-bfff-ffffffffffff$/);
});

test('cut behind every byte of the request and of the answer, each operation charges once', { timeout: 120_000 }, async (t) => {
  const { url, wire, charges } = await shop(t);
  const client = clientOf({ attempts: 10 });
  let operations = 0;
  for (const side of ['request', 'answer']) {
    let length = 1;
    for (let at = 0; at <= length; at++) {
      const cut = wire.cut({ side, once: true, at: (whole) => (({ length } = whole), at) });
      const answer = await client.fetch(`${url}/charges`, pay);
      await cut;
      operations++;
      assert.equal(await text(answer), `201 {"charge":${charges.length}}`, `cut behind byte ${at} of the ${side}`);
      await answer.told();
    }
  }
  assert.ok(operations > 300, `${operations} cuts`);
  assert.equal(charges.length, operations);
  assert.equal(new Set(charges).size, operations);
});
