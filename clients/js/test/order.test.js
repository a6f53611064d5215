// Middleware for compression and CORS, in front of a protected handler and inside of it.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { after, test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import fastifyCompress from '@fastify/compress';
import fastifyCors from '@fastify/cors';
import compression from 'compression';
import cors from 'cors';
import express from 'express';
import fastify from 'fastify';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/express';
import { idempotency as onFastify } from '@stet-go/stet/fastify';
import { mode } from './service.js';
import { closeDatabase, post } from './support.js';

after(closeDatabase);

const paid = { paid: 'x'.repeat(2000) };
const pay = (client) => client.query("INSERT INTO charges (key, amount) VALUES ('order', 1)");

function optionsOf(t) {
  const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
  const lines = [];
  t.after(() => pool.end());
  return { options: { pool, scope: () => 'acct_1', mode, log: (line) => lines.push(line) }, lines };
}

test('compression and CORS in front of a handler of Express suit each request', async (t) => {
  const { options, lines } = optionsOf(t);
  const app = express().use(compression(), cors({ origin: true }));
  app.post('/payments', idempotency(options)(async (req, res, client) => { await pay(client); res.json(paid); }));
  const server = app.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => { server.closeAllConnections(); server.close(); });
  const url = `http://127.0.0.1:${server.address().port}`;
  const key = randomUUID();
  for (const [accepted, origin] of [['gzip', 'https://a.example'], ['identity', 'https://b.example']]) {
    const got = await post(url, { key, headers: { 'Accept-Encoding': accepted, Origin: origin } });
    assert.deepEqual([got.headers['content-encoding'], got.headers['access-control-allow-origin']], [accepted === 'gzip' ? ['gzip'] : undefined, [origin]]);
    assert.deepEqual(JSON.parse(accepted === 'gzip' ? gunzipSync(got.body) : got.body), paid);
  }
  assert.deepEqual(lines, []);
});

async function onFastifyOf(t, prepare) {
  const { options, lines } = optionsOf(t);
  const app = fastify();
  await prepare(app);
  app.post('/payments', onFastify(options)(async (request, reply, client) => { await pay(client); return paid; }));
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => { app.server.closeAllConnections(); return app.close(); });
  return { url, lines };
}

test('CORS of Fastify in front of the handler suits each request', async (t) => {
  const { url, lines } = await onFastifyOf(t, (app) => app.register(fastifyCors, { origin: true }));
  const key = randomUUID();
  for (const origin of ['https://a.example', 'https://b.example']) {
    assert.deepEqual((await post(url, { key, headers: { Origin: origin } })).headers['access-control-allow-origin'], [origin]);
  }
  assert.deepEqual(lines, []);
});

test('CORS by a hook inside of the handler is never replayed to another origin, and is logged once', async (t) => {
  const { url, lines } = await onFastifyOf(t, (app) => app.addHook('onSend', async (request, reply) => { reply.header('Access-Control-Allow-Origin', request.headers.origin); }));
  const key = randomUUID();
  for (const [k, origin, allowed] of [[key, 'https://a.example', ['https://a.example']], [key, 'https://b.example', undefined], [randomUUID(), 'https://b.example', ['https://b.example']]]) {
    assert.deepEqual((await post(url, { key: k, headers: { Origin: origin } })).headers['access-control-allow-origin'], allowed);
  }
  assert.equal(lines.length, 1);
  assert.match(lines[0], /POST \/payments .*Access-Control-Allow-Origin/);
});

test('compression of Fastify is stored, is refused to a retry that does not accept it, and is logged once', async (t) => {
  const { url, lines } = await onFastifyOf(t, (app) => app.register(fastifyCompress));
  const key = randomUUID();
  const gzip = { 'Accept-Encoding': 'gzip' };
  for (let i = 0; i < 2; i++) assert.deepEqual(JSON.parse(gunzipSync((await post(url, { key, headers: gzip })).body)), paid);
  assert.equal((await post(url, { key, headers: { 'Accept-Encoding': 'identity' } })).type, 'coding-not-acceptable');
  await post(url, { key: randomUUID(), headers: gzip });
  assert.equal(lines.length, 1);
  assert.match(lines[0], /POST \/payments .*Content-Encoding/);
});
