// Koa and Hono, whose responses are values: the first response is the stored one. Bodies that were read early, or by stet.

import 'reflect-metadata';
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { Readable } from 'node:stream';
import { after, test } from 'node:test';
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises';
import { serve } from '@hono/node-server';
import Router from '@koa/router';
import { Controller, Module, Post, Req, UseInterceptors } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Hono } from 'hono';
import Koa from 'koa';
import pg from 'pg';
import { idempotency as hono } from '@stet-go/stet/hono';
import { idempotency as koa } from '@stet-go/stet/koa';
import { Client, idempotency as nest } from '@stet-go/stet/nest';
import { charges, closeDatabase, lasting, post } from '../support.js';

const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE, max: 4 });
after(async () => { await pool.end(); await closeDatabase(); });

async function listening(t, server) {
  if (!server.listening) await once(server, 'listening');
  t.after(() => { server.close(); server.closeAllConnections(); });
  return `http://127.0.0.1:${server.address().port}`;
}

// withKoa is a service in which write makes the response.
function withKoa(t, write, options = {}) {
  const protect = koa({ pool, scope: (ctx) => ctx.get('X-Account'), log: () => {}, ...options.stet });
  const app = new Koa(), router = new Router();
  app.silent = true;
  app.use(async (ctx, next) => { await next(); await options.after; });
  router.post('/payments', protect(async (ctx, client) => {
    await client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [ctx.get('Idempotency-Key')]);
    return write(ctx);
  }));
  return listening(t, app.use(router.routes()).listen(0, '127.0.0.1'));
}

const bodies = {
  'null after the status': (ctx) => { ctx.body = null; ctx.status = 201; },
  'a text without a type': (ctx) => { ctx.body = 'x'; ctx.remove('Content-Type'); },
  'a stream': (ctx) => { ctx.body = Readable.from(['a', 'b']); },
  'an object': (ctx) => { ctx.body = { paid: 1 }; },
  'a status alone': (ctx) => { ctx.status = 201; },
  'a Blob': (ctx) => { ctx.body = new Blob(['x'], { type: 'text/x' }); },
  'status 205': (ctx) => { ctx.status = 205; },
};

for (const [name, write] of Object.entries(bodies)) {
  test(`Koa sends the stored response, which equals that without stet: ${name}`, async (t) => {
    const url = await withKoa(t, write), key = randomUUID();
    const first = lasting(await post(url, { key }));
    assert.deepEqual(lasting(await post(url, { key })), first);
    const plain = lasting(await post(await listening(t, new Koa().use(write).listen(0, '127.0.0.1')), { key }));
    for (const { headers } of [first, plain]) for (const framing of ['content-length', 'transfer-encoding']) delete headers[framing];
    assert.deepEqual(first, plain);
  });
}

test('Koa: changes of the response during the commit have no effect', async (t) => {
  const url = await withKoa(t, (ctx) => {
    [ctx.status, ctx.body] = [201, 'paid'];
    const late = async () => { await turn(); await turn(); ctx.set('X-Late', 'x'); [ctx.status, ctx.body] = [500, 'late']; };
    void late();
  });
  const key = randomUUID();
  const first = lasting(await post(url, { key }));
  assert.deepEqual([first.status, first.headers['x-late']], [201, undefined]);
  assert.deepEqual(lasting(await post(url, { key })), first);
});

test('Koa: a handler that was rolled back for its time cannot send a response later', async (t) => {
  let end;
  const after = new Promise((resolve) => { end = resolve; });
  const url = await withKoa(t, async (ctx) => {
    await sleep(300);
    [ctx.status, ctx.body] = [201, 'paid'];
    ctx.res.end('paid');
    end();
  }, { stet: { timeout: 100 }, after });
  const key = randomUUID();
  const { status, type } = await post(url, { key });
  assert.deepEqual([status, type, await charges(key)], [500, 'response-missing', 0]);
  await after;
});

test('Koa: a response that is written to ctx.res is not sent, and is rolled back', async (t) => {
  for (const write of [(ctx) => ctx.res.end('paid'), (ctx) => { ctx.respond = false; ctx.res.writeHead(201); Readable.from(['paid']).pipe(ctx.res); }]) {
    const url = await withKoa(t, write), key = randomUUID();
    const { status, text } = await post(url, { key });
    assert.deepEqual([status, text, await charges(key)], [500, 'Internal Server Error', 0]);
  }
});

test('Koa: a text of more than 16 MiB is rolled back, as a stream is', async (t) => {
  for (const body of ['x'.repeat((16 << 20) + 1), Readable.from([Buffer.alloc(16 << 20), Buffer.alloc(1)])]) {
    const url = await withKoa(t, (ctx) => { ctx.body = body; }), key = randomUUID();
    assert.deepEqual([(await post(url, { key })).type, await charges(key)], ['response-too-large', 0]);
  }
});

test('Hono: a body that was read before stet is refused and logged, because requests cannot be compared', async (t) => {
  const logged = [], app = new Hono();
  app.use(async (c, next) => { await c.req.json(); await next(); });
  app.post('/payments', hono({ pool, scope: (c) => c.req.header('X-Account'), log: (line) => logged.push(line) }), (c) => c.json({}, 201));
  const url = await listening(t, serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1', overrideGlobalObjects: false }));
  assert.equal((await post(url, { key: randomUUID() })).type, 'misconfigured');
  assert.match(logged.join(), /body was read before this handler/);
});

test('NestJS: a handler gets the bytes of a type that Nest does not parse', async (t) => {
  class Payments {
    async pay(request, client) { await client.query('SELECT 1'); return request.rawBody.toString(); }
  }
  [Req(), Client()].forEach((decorate, i) => decorate(Payments.prototype, 'pay', i));
  for (const decorate of [Post('payments'), UseInterceptors(nest({ pool, scope: (request) => request.get('X-Account') }))]) decorate(Payments.prototype, 'pay', Object.getOwnPropertyDescriptor(Payments.prototype, 'pay'));
  Controller()(Payments);
  class App {}
  Module({ controllers: [Payments] })(App);
  const app = await NestFactory.create(App, { logger: false, rawBody: true });
  await app.listen(0, '127.0.0.1');
  t.after(() => { app.getHttpServer().closeAllConnections(); return app.close(); });
  const { text } = await post(`http://127.0.0.1:${app.getHttpServer().address().port}`, { key: randomUUID(), body: 'plain', headers: { 'Content-Type': 'text/plain' } });
  assert.equal(text, 'plain');
});
