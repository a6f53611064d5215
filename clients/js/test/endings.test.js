// How a run ends: errors, destroyed responses, late failures, and wrong wiring.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { Readable, pipeline } from 'node:stream';
import { after, describe, it } from 'node:test';
import pg from 'pg';
import { emit } from '@stet-go/stet';
import { answersLate, charge, frameworks, mode, start } from './service.js';
import { asOwner, charges, closeDatabase, lasting, post } from './support.js';

after(closeDatabase);

for (const framework of frameworks.includes('express') ? [...frameworks, 'express4'] : frameworks) describe(framework, () => {
  const serve = async (t, handler, options) => {
    const service = await start(framework, handler, options);
    t.after(service.stop);
    return service;
  };
  const failing = (status) => async (request) => {
    await charge({ ...request, reply: () => {} });
    throw Object.assign(new Error('no'), { status });
  };

  // A service whose handler waits for a second connection of a pool that has one.
  const exhausted = (t, timeout) => {
    const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE, max: 1 });
    t.after(() => pool.end());
    return serve(t, async (request) => {
      await charge({ ...request, reply: () => {} });
      const second = await pool.connect();
      second.release();
    }, { pool, timeout });
  };

  it('a thrown error undoes the writes, and a refusal is stored then', async (t) => {
    const kept = framework === 'next' ? undefined : ['true']; // Next.js makes no response of an error that has a status
    for (const [status, replayed] of [[409, kept], [422, kept], [303, kept], [401, undefined], [408, undefined], [429, undefined], [503, undefined]]) {
      let runs = 0;
      const { url } = await serve(t, (request) => { runs++; return failing(status)(request); });
      const key = randomUUID();
      const first = await post(url, { key });
      assert.deepEqual([first.status, first.headers['x-error'], first.headers['idempotent-replayed']], [status, ['app'], undefined]);
      const again = await post(url, { key });
      assert.deepEqual([again.headers['idempotent-replayed'], runs, await charges(key)], [replayed, replayed ? 1 : 2, 0], `${status}`);
      if (replayed) assert.deepEqual(lasting(again), lasting(first));
    }
  });

  if (framework !== 'next') it('an error that is answered with a success is rolled back, and the response is not sent', async (t) => {
    const { url, logged } = await serve(t, failing(200));
    const key = randomUUID();
    const got = await post(url, { key });
    assert.deepEqual([got.status, got.type, await charges(key)], [500, 'response-missing', 0]);
    assert.match(logged[0], /answered with the status 200/);
  });

  it('a response that the handler wrote commits, with any 4xx', async (t) => {
    const { url } = await serve(t, (request) => charge({ ...request, reply: () => request.reply(409, {}, 'no') }));
    const key = randomUUID();
    assert.deepEqual([(await post(url, { key })).status, (await post(url, { key })).headers['idempotent-replayed'], await charges(key)], [409, ['true'], 1]);
  });

  it('a response with a failing source is rolled back at once, and its connection is free', { timeout: 20_000 }, async (t) => {
    const { url, logged, pool } = await serve(t, async (request) => {
      await charge({ ...request, reply: () => {} });
      const source = Readable.from((async function* () { yield 'part'; throw new Error('the source broke'); })());
      const { native: { res, stream } } = request;
      if (res) return void pipeline(source, res, () => {});
      return stream(source);
    });
    for (let n = 0; n < 3; n++) {
      const key = randomUUID();
      const got = await post(url, { key });
      assert.deepEqual([got.status, await charges(key)], [500, 0]);
    }
    assert.equal(pool.totalCount - pool.idleCount, 0);
    if (framework.startsWith('express')) assert.match(logged[0], /destroyed before its end/);
  });

  const returns = !framework.startsWith('express') && framework !== 'fastify'; // the end of the handler is that of its response
  if (!returns) it('a handler that fails after its outcome was committed is logged', async (t) => {
    let fail;
    const { url, logged } = await serve(t, async (request) => {
      await charge(request);
      await new Promise((resolve) => { fail = resolve; });
      throw new Error('too late');
    });
    const key = randomUUID();
    assert.equal((await post(url, { key })).status, 201);
    fail();
    await new Promise(setImmediate);
    assert.match(logged.join(), /failed after its outcome was committed; the outcome is unchanged.*too late/);
    assert.equal((await post(url, { key })).headers['idempotent-replayed'][0], 'true');
  });

  it('a client that is used after the commit writes nothing, and that is logged', async (t) => {
    let client;
    const { url, logged } = await serve(t, async (request) => { client = request.client; await charge(request); });
    await post(url, { key: randomUUID() });
    await assert.rejects(client.query('SELECT 1'), /has ended/);
    assert.match(logged.join(), /used its client after its transaction had ended/);
  });

  it('a transaction inside of the handler\'s is a savepoint, as query builders begin them', async (t) => {
    const { url } = await serve(t, async (request) => {
      const { client } = request;
      const write = () => client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [request.key]);
      await client.query('begin');
      await write();
      await client.query('BEGIN');
      await write();
      await client.query('rollback');
      await client.query({ text: 'COMMIT' });
      client.release();
      await assert.rejects(client.query('commit'), /not the handler's/);
      await charge(request);
    });
    const key = randomUUID();
    assert.deepEqual([(await post(url, { key })).status, await charges(key)], [201, 2]);
  });

  it('a nested transaction that no savepoint can stand for is refused, and nothing of it is lost', async (t) => {
    const insert = (key) => `INSERT INTO charges (key, amount) VALUES ('${key}', 1)`;
    for (const text of [(key) => `BEGIN; ${insert(key)}; COMMIT`, (key) => `BEGIN /* a */; ${insert(key)} /* b */`, () => 'BEGIN ISOLATION LEVEL SERIALIZABLE', () => 'begin read only']) {
      const { url } = await serve(t, async (request) => {
        await request.client.query(text(request.key));
        await charge(request);
      });
      const key = randomUUID();
      const got = await post(url, { key });
      assert.deepEqual([got.status, await charges(key)], [500, 0], got.text);
      assert.match(got.text, /this transaction is not the handler's/);
    }
  });

  it('a handler that never used its client is logged once, or refused', async (t) => {
    for (const requireTransaction of [false, true]) {
      const { url, logged } = await serve(t, (request) => request.reply(200, {}, 'paid'), { requireTransaction });
      const got = await post(url, { key: randomUUID() });
      assert.deepEqual([got.status, got.type], requireTransaction ? [500, 'misconfigured'] : [200, undefined]);
      await post(url, { key: randomUUID() });
      assert.equal(logged.length, requireTransaction ? 2 : 1);
      assert.match(logged[0], /POST \/payments is protected and never used its client/);
    }
  });

  it('a handler that waits for a second connection of the pool is rolled back, and logged', { timeout: 30_000 }, async (t) => {
    const { url, logged } = await exhausted(t, 300);
    const got = await post(url, { key: randomUUID() });
    assert.deepEqual([got.status, got.type], [500, 'response-missing']);
    assert.match(logged[0], /callers wait for a connection of the pool/);
  });

  it('a handler that waits for a second connection is logged after a second, long before its timeout', { timeout: 30_000 }, async (t) => {
    const { url, logged } = await exhausted(t, 4000);
    const began = Date.now();
    const answered = post(url, { key: randomUUID() });
    while (logged.length === 0 && Date.now() - began < 3500) await new Promise((done) => setTimeout(done, 20));
    assert.match(logged[0] ?? '', /has run for a second while callers wait for a connection of the pool/);
    assert.equal((await answered).status, 500);
    assert.equal(logged.length, 2);
  });

  it('a handler that ends its transaction in disguise gets an error', async (t) => {
    const { url } = await serve(t, async (request) => {
      await request.client.query('SELECT 1; ROLLBACK').catch(() => {});
      request.reply(200, {}, 'paid');
    });
    const got = await post(url, { key: randomUUID() });
    assert.equal(got.status, 500);
    if (answersLate(framework)) assert.match(got.text, mode === 'functions' ? /has ended its transaction itself/ : /transaction is aborted/); // a text of several statements is refused
  });

  it('after a handler has removed prepared statements, one request executes nothing, and its retry runs', async (t) => {
    let removes = true;
    const { url } = await serve(t, async (request) => {
      await request.client.query(removes ? 'DEALLOCATE ALL' : 'SELECT 1');
      await charge(request);
    });
    assert.equal((await post(url, { key: randomUUID() })).status, 201);
    removes = false;
    const key = randomUUID();
    assert.deepEqual([(await post(url, { key })).type, await charges(key)], ['store-unavailable', 0]);
    for (const replayed of [undefined, ['true']]) {
      const got = await post(url, { key });
      assert.deepEqual([got.status, got.headers['idempotent-replayed'], await charges(key)], [201, replayed, 1], got.text);
    }
  });

  it('a database without the functions is logged with the command that makes them', async (t) => {
    const missing = await serve(t, () => assert.fail('it ran'), { schema: 'nowhere', table: 'orders' });
    await post(missing.url, { key: randomUUID() });
    assert.match(missing.logged[0], /stet migrate up --store-schema nowhere --store-table orders/);
  });

  it('a role without the rights is logged with the grants that it lacks, and they suffice', async (t) => {
    const revoke = 'REVOKE ALL ON FUNCTION stet.stet_begin_raw, stet.stet_settle_raw, stet.stet_settle, stet.stet_emit FROM stranger; REVOKE ALL ON SEQUENCE stet.records_fence FROM stranger; REVOKE ALL ON stet.records FROM stranger';
    const url = new URL(process.env.STET_DATABASE);
    url.username = 'stranger';
    const { url: service, logged } = await serve(t, async (request) => {
      await emit(request.client, { to: 'payments' });
      await charge(request);
    }, { url: url.href });
    await asOwner(revoke);
    const key = randomUUID();
    const granted = () => /Run, as the owner of the database: (GRANT .*) TO your_role/.exec(logged.findLast((line) => line.includes('GRANT')))[0].slice('Run, as the owner of the database: '.length).replaceAll('your_role', 'stranger');
    assert.equal((await post(service, { key })).type, 'misconfigured');
    await asOwner(granted());
    assert.equal((await post(service, { key })).status, 500); // it emits
    await asOwner(granted());
    assert.equal((await post(service, { key })).status, 201);
    await asOwner('REVOKE ALL ON FUNCTION stet.stet_settle FROM stranger');
    assert.equal((await post(service, { key: randomUUID() })).status, 500);
    assert.match(logged.findLast((line) => line.includes('GRANT')), /GRANT EXECUTE ON FUNCTION .*"stet_settle"/);
  });

  it('a replay has the stored Cache-Control', async (t) => {
    const { url } = await serve(t, (request) => charge({ ...request, reply: () => request.reply(201, { 'Cache-Control': 'max-age=60' }, '{}') }));
    const key = randomUUID();
    for (const replayed of [undefined, ['true']]) {
      const got = await post(url, { key });
      assert.deepEqual([got.headers['cache-control'], got.headers['idempotent-replayed']], [['max-age=60'], replayed]);
    }
  });
});
