// Waits for operations that were accepted with 202, by a Go service with stet and by others.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createClient, memoryJournal } from '@stet-go/stet/client';
import { lost, reply, service } from './answers.js';

const accepting = process.env.STET_ACCEPTING;
const clientOf = (options = {}) => createClient({ journal: memoryJournal(), attempts: 4, base: 1, cap: 2, ...options });
const order = (gate, end) => ({ method: 'POST', headers: { 'Content-Type': 'application/json', 'X-Account': 'acct_1' }, body: JSON.stringify({ Gate: gate, End: end }) });
const open = (gate) => fetch(`${accepting}/gates/${gate}`, { method: 'POST' });
const runs = async (gate) => Number(await (await fetch(`${accepting}/gates/${gate}`)).text());
const json = (status, value, headers = {}) => reply(status, { 'Content-Type': 'application/json', ...headers }, JSON.stringify(value));
const took = json(202, { id: '1', status_url: '/status/1' }, { Location: '/status/1' });
const running = json(200, { id: '1', state: 'running', attempts: 1 });
const ended = (outcome, state = 'completed') => json(200, { id: '1', state, attempts: 1, outcome });
const brief = ({ execution, settled, reason }) => ({ execution, settled, reason });
const text = async (answer) => `${answer.response.status} ${await answer.response.text()}`;
const post = { method: 'POST', body: '{}', headers: { 'Content-Type': 'application/json' } };

// polling is a fetch that does not ask for events.
const polling = (url, init = {}) => {
  const headers = new Headers(init.headers);
  if (headers.get('Accept')?.startsWith('text/event-stream')) headers.set('Accept', 'application/json');
  return fetch(url, { ...init, headers });
};

for (const [how, options] of [['by events', {}], ['by asking', { fetch: polling }]]) {
  test(`the client waits ${how} for the outcome of a job that a Go service accepted, exact to the last digit`, async () => {
    const gate = `done ${how}`, progress = [];
    const client = clientOf({ ...options, observe: (event) => {
      if (!event.progress) return;
      progress.push(event.progress);
      if (event.progress.progress?.message === 'packing' || options.fetch) void open(gate).catch(() => {});
    } });
    const answer = await client.fetch(`${accepting}/orders`, { ...order(gate), operation: 'o' });
    assert.deepEqual(brief(answer), { execution: 'executed', settled: true, reason: 'outcome' });
    assert.equal(await text(answer), '200 {"parcel":12345678901234567890,"note":"\\"}é"}');
    assert.equal(answer.response.headers.get('Content-Type'), 'application/json');
    assert.ok(progress.length > 0);
    assert.equal((await client.fetch(`${accepting}/orders`, { ...order(gate), operation: 'o' })).replayed, true);
    assert.equal(await runs(gate), 1);
  });

  test(`a failed operation of a Go service is returned ${how}`, async () => {
    const gate = `failed ${how}`;
    await open(gate);
    const answer = await clientOf(options).fetch(`${accepting}/orders`, order(gate, 'fail'));
    assert.deepEqual(brief(answer), { execution: 'may-have-executed', settled: true, reason: 'outcome' });
    assert.equal(answer.response.status, 500);
    assert.match(answer.problem.type, /#operation-failed$/);
  });
}

test('an operation that exceeds wait is resumed: the same operation, once', async () => {
  const gate = 'later', journal = memoryJournal();
  const first = await clientOf({ journal, wait: 100 }).fetch(`${accepting}/orders`, { ...order(gate), operation: 'o' });
  assert.deepEqual(brief(first), { execution: 'may-have-executed', settled: false, reason: 'wait' });
  assert.equal(first.response.status, 202);
  await open(gate);
  const [answer] = await clientOf({ journal }).resume();
  assert.deepEqual(brief(answer), { execution: 'executed', settled: true, reason: 'outcome' });
  assert.equal(await runs(gate), 1);
});

test('with wait 0, and without a status resource, the 202 is the outcome', async (t) => {
  const { url, requests } = await service(t, took, reply(202, {}, 'soon'));
  const answer = await clientOf().fetch(url, { ...post, wait: 0 });
  assert.deepEqual([answer.settled, answer.response.status], [true, 202]);
  assert.equal(await text(await clientOf().fetch(url, post)), '202 soon');
  assert.equal(requests.length, 2);
});

for (const [what, answer, want, body] of [
  ['a result that is no JSON', ended({ status: 201, media_type: 'text/plain', result_base64: Buffer.from('päid').toString('base64') }), ['executed', true, 'outcome'], '201 päid'],
  ['no result', ended({ status: 204 }), ['executed', true, 'outcome'], '204 '],
  ['the result null', ended({ status: 200, result: null }), ['executed', true, 'outcome'], '200 null'],
  ['a problem', ended({ status: 409, problem: { execution: 'not executed', retryable: false } }, 'failed'), ['not-executed', true, 'outcome'], '409 {"execution":"not executed","retryable":false}'],
  ['a result that is not kept', ended({ status: 410, problem: { execution: 'executed', retryable: false } }), ['executed', true, 'gone']],
  ['a 410', reply(410, { 'Content-Type': 'application/problem+json' }, '{"execution":"executed","retryable":false}'), ['executed', true, 'gone']],
  ['a 404', reply(404), ['may-have-executed', false, 'status']],
  ['a 403', reply(403), ['may-have-executed', false, 'status']],
  ['an outcome without a status', ended({ result: 1 }), ['may-have-executed', false, 'status']],
  ['an outcome in a content coding', ended({ status: 200, content_coding: 'br', result_base64: 'AA==' }), ['may-have-executed', false, 'status']],
  ['another document', json(200, { state: 'sold' }), ['executed', true, 'outcome'], '200 {"state":"sold"}'],
  ['a document that is too long', json(200, { state: 'running', more: 'x'.repeat(2 << 20) }), ['may-have-executed', false, 'status']],
  ['an event that never ends', (res) => res.writeHead(200, { 'Content-Type': 'text/event-stream' }).end(`data: ${'x'.repeat(2 << 20)}`), ['may-have-executed', false, 'status']],
]) {
  test(`a status resource that reports ${what}`, async (t) => {
    const { url } = await service(t, took, answer);
    const got = await clientOf().fetch(url, { ...post, operation: 'o' });
    assert.deepEqual([got.execution, got.settled, got.reason], want);
    if (body !== undefined) assert.equal(await text(got), body);
  });
}

test('events are read however they are cut into pieces and lines, and asked for again after the last one', async (t) => {
  const document = JSON.stringify({ id: '1', state: 'running', attempts: 1, note: 'é' });
  const stream = Buffer.from(`retry: 1\n\n:\n\nid: one\r\nevent: status\r\ndata: ${document.slice(0, 5)}`.replaceAll('\r\n', '\n'));
  const events = (pieces) => async (res) => {
    res.writeHead(200, { 'Content-Type': 'text/event-stream' });
    for (const piece of pieces) await new Promise((resolve) => res.write(piece, resolve));
    res.end();
  };
  const whole = Buffer.from(`:\r\n\r\nid: one\r\nevent: status\r\ndata: ${document.replace(',', ',\r\ndata: ')}\r\n\r\nid: two\r\ndata: broken off`);
  const end = Buffer.from(`\n\nid: end\nevent: end\ndata: {"id":"1","state":"completed","attempts":1,"outcome":{"status":200,"result":7}}\n\n`);
  const seen = [];
  const { url, requests } = await service(t, took, events([stream]), events(Array.from(whole, (byte) => Buffer.of(byte))), lost, reply(503), events([end.subarray(0, 60), end.subarray(60)]));
  const answer = await clientOf({ observe: ({ progress }) => progress && seen.push(progress) }).fetch(url, post);
  assert.equal(await text(answer), '200 7');
  assert.deepEqual(seen, [JSON.parse(document)]);
  assert.deepEqual(requests.slice(1).map(({ headers }) => headers['last-event-id']), [undefined, undefined, 'one', 'one', 'one']);
});

test('a status resource of another origin gets no header, a redirect does not pass headers on, and neither gets the key', async (t) => {
  const other = await service(t, running, ended({ status: 200, result: 1 }), ended({ status: 200, result: 2 }));
  const own = await service(t, reply(202, { Location: `${other.url}/status` }), reply(202, { Location: '/moved' }), reply(307, { Location: `${other.url}/status` }));
  const secret = { ...post, headers: { ...post.headers, Authorization: 'Bearer x', 'X-Account': 'acct_1' } };
  const client = clientOf({ authorize: () => ({ 'X-Session': 'y' }) });
  assert.equal(await text(await client.fetch(own.url, secret)), '200 1');
  assert.equal(await text(await client.fetch(own.url, secret)), '200 2');
  for (const { headers } of other.requests) assert.deepEqual(['authorization', 'x-account', 'x-session', 'idempotency-key', 'cookie', 'prefer'].filter((name) => name in headers), []);
  const { headers } = own.requests.at(-2); // the last one is that of the redirect, which is followed without
  assert.deepEqual([headers.authorization, headers['x-account'], headers['x-session'], headers.prefer, headers['idempotency-key'], headers['content-type']], ['Bearer x', 'acct_1', 'y', 'wait=20', undefined, undefined]);
});

test('a status resource that is no URL of the web is refused, and one without TLS where the operation had it', async (t) => {
  const { url } = await service(t, reply(202, { Location: 'javascript:alert(1)' }));
  assert.deepEqual(brief(await clientOf().fetch(url, post)), { execution: 'may-have-executed', settled: false, reason: 'status' });
  const { statusURL } = await import(new URL('client/accepted.js', import.meta.resolve('@stet-go/stet/client')).href);
  const answer = { headers: new Headers({ Location: 'http://shop.test/status' }), body: new Uint8Array(0), url: '' };
  assert.throws(() => statusURL(answer, { url: 'https://shop.test/orders' }), /scheme/);
  assert.equal(statusURL(answer, { url: 'http://shop.test/orders' }).href, 'http://shop.test/status');
});

test('a signal ends the wait, in the middle of a stream too', async (t) => {
  const caller = new AbortController();
  const { url } = await service(t, took, (res) => res.writeHead(200, { 'Content-Type': 'text/event-stream' }).write(':\n\n', () => caller.abort()));
  const journal = memoryJournal();
  const answer = await clientOf({ journal }).fetch(url, { ...post, signal: caller.signal });
  assert.deepEqual(brief(answer), { execution: 'may-have-executed', settled: false, reason: 'aborted' });
  assert.equal((await journal.list()).length, 1);
});

test('a member of JSON is cut out as it stands', async () => {
  const { member } = await import(new URL('client/accepted.js', import.meta.resolve('@stet-go/stet/client')).href);
  let seed = 7;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const value = (depth) => [() => random(1e6) / 7, () => '"}{][,:\\ \u2028é'.slice(random(9)), () => null, () => true, () => [], () => ({}),
    () => Array.from({ length: random(4) }, () => value(depth + 1)), () => Object.fromEntries(Array.from({ length: random(4) }, () => ['ab"}:{,\\'.slice(random(6)), value(depth + 1)]))][random(depth > 3 ? 6 : 8)]();
  for (let i = 0; i < 2000; i++) {
    const object = { before: value(0), 'x"}': value(0), wanted: value(0), after: value(0) };
    for (const space of [undefined, 2, '\t']) assert.deepEqual(JSON.parse(member(JSON.stringify(object, null, space), 'wanted')), object.wanted);
    assert.equal(member(JSON.stringify(object), 'none'), '');
  }
});
