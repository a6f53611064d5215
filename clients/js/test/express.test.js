import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { after, test } from 'node:test';
import express from 'express';
import pg from 'pg';
import { canonicalJSON } from '@stet-go/stet';
import { idempotency, keepBody } from '@stet-go/stet/express';
import { idempotency as onFastify } from '@stet-go/stet/fastify';
import { mode } from './service.js';
import { charges, closeDatabase, lasting, post } from './support.js';

after(closeDatabase);

async function serve(t, around, handler, options = {}) {
  const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
  const lines = [];
  const app = express();
  if (around) app.use(around);
  app.post('/payments', idempotency({ pool, scope: () => 'one', mode, log: (line) => lines.push(line), ...options })(handler));
  const server = app.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(async () => { server.closeAllConnections(); server.close(); await pool.end(); });
  return { url: `http://127.0.0.1:${server.address().port}`, lines };
}

test('the body is parsed, and kept as it came', async (t) => {
  const { url } = await serve(t, undefined, (req, res) => { res.json({ body: req.body ?? 'none', raw: req.rawBody.toString(), buffer: Buffer.isBuffer(req.body) }); });
  const echo = async (type, body) => JSON.parse((await post(url, { key: randomUUID(), body, headers: { 'Content-Type': type } })).text);
  assert.deepEqual(await echo('application/json; charset=utf-8', '{"a": 1}'), { body: { a: 1 }, raw: '{"a": 1}', buffer: false });
  assert.deepEqual((await echo('text/plain', 'abc')).buffer, true);
  assert.deepEqual(await echo('application/json', ''), { body: 'none', raw: '', buffer: false });
  for (const [type, body, headers] of [['body-invalid', '{'], ['body-invalid', Buffer.of(0x22, 0xff, 0x22)], ['media-type-unsupported', '{}', { 'Content-Encoding': 'gzip' }]]) {
    assert.equal((await post(url, { key: randomUUID(), body, headers })).type, type);
  }
});

test('a body that was read before is kept by keepBody, and refused without', async (t) => {
  const handler = (req, res) => { res.json(req.body); };
  const blind = await serve(t, express.json(), handler);
  const refused = await post(blind.url, { key: randomUUID() });
  assert.deepEqual([refused.status, refused.type], [500, 'misconfigured']);
  assert.match(blind.lines[0], /keepBody/);
  const { url } = await serve(t, express.json({ verify: keepBody }), handler);
  const key = randomUUID();
  assert.equal((await post(url, { key, body: '{"a":1}' })).text, '{"a":1}');
  assert.deepEqual((await post(url, { key, body: '{"a":1}' })).headers['idempotent-replayed'], ['true']);
  assert.equal((await post(url, { key, body: '{"a": 1}' })).type, 'mismatch', 'the bytes count');
});

test('canonical JSON makes equivalent retries match', async (t) => {
  const { url } = await serve(t, undefined, (req, res) => { res.json(req.body); }, { canonicalize: canonicalJSON('/sent_at') });
  const key = randomUUID();
  const first = await post(url, { key, body: '{"amount": 100, "sent_at": 1}' });
  assert.deepEqual(lasting(await post(url, { key, body: '{"sent_at":2,"amount":100}' })), lasting(first));
  assert.equal((await post(url, { key, body: '{"amount":100.0}' })).type, 'mismatch');
});

test('writes of Express and of streams are held back and stored', async (t) => {
  const { url } = await serve(t, undefined, async (req, res) => {
    res.writeHead(200, 'Fine', { 'X-Way': req.body.way });
    assert.ok(res.headersSent);
    res.flushHeaders();
    if (req.body.way === 'pipeline') await pipeline(Readable.from(['a', Buffer.from('b'), 'c']), res);
    else if (req.body.way === 'write') { res.write('a'); res.write('YmM=', 'base64', () => res.end()); }
    else Readable.from(['abc']).pipe(res);
  });
  for (const way of ['pipeline', 'write', 'pipe']) {
    const request = { key: randomUUID(), body: JSON.stringify({ way }) };
    const first = await post(url, request);
    assert.deepEqual([first.text, first.headers['x-way']], ['abc', [way]]);
    assert.deepEqual(lasting(await post(url, request)), lasting(first));
  }
});

test('a response shorter than its Content-Length is rolled back', async (t) => {
  const { url } = await serve(t, undefined, (req, res) => { res.writeHead(200, { 'Content-Length': 10 }); res.end('short'); });
  const got = await post(url, { key: randomUUID() });
  assert.deepEqual([got.status, got.type, got.problem.retryable], [500, 'response-invalid', true]);
});

test('a response that is too large to hold is rolled back', async (t) => {
  const { url } = await serve(t, undefined, (req, res) => { res.end(Buffer.alloc((16 << 20) + 1)); });
  const got = await post(url, { key: randomUUID() });
  assert.deepEqual([got.status, got.type, got.problem.execution], [500, 'response-too-large', 'not executed']);
});

test('writes after the end of the response are committed with it, or nothing is', async (t) => {
  const { url } = await serve(t, undefined, async (req, res, client) => {
    const write = () => client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [req.get('Idempotency-Key')]);
    res.json({});
    await write(); // at once: in time
    if (req.body.then === 'writes') await assert.rejects(write(), /has ended/);
    if (req.body.then === 'throws') throw new Error('after all');
  });
  for (const [then, status, stands] of [['writes', 500, 0], ['throws', 500, 0], ['returns', 200, 1]]) {
    const key = randomUUID();
    const got = await post(url, { key, body: JSON.stringify({ then }) });
    assert.deepEqual([got.status, await charges(key)], [status, stands], then);
  }
});

test('a scope that fails or is not text refuses the request', async (t) => {
  for (const [scope, type] of [[() => { throw new Error('no directory'); }, 'scope-failed'], [async () => undefined, 'scope-missing'], [() => 7, 'misconfigured']]) {
    const { url } = await serve(t, undefined, () => assert.fail('it ran'), { scope });
    assert.equal((await post(url, { key: randomUUID() })).type, type);
  }
});

test('wrong options are errors at once', () => {
  const pool = { connect() {} };
  for (const make of [idempotency, onFastify]) {
    for (const options of [undefined, {}, { pool }, { pool: {}, scope() {} }, { pool, scope() {}, maxbody: 1 }, { pool, scope() {}, maxBody: 0 }, { pool, scope() {}, canonicalize: 'yes' },
      { pool, scope() {}, problemBase: 'problems' }, { pool, scope() {}, timeout: '1s' }]) {
      assert.throws(() => make(options), /stet: /);
    }
    assert.throws(() => make({ pool, scope() {} })(), /a handler is needed/);
  }
});
