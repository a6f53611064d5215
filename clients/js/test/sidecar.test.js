// Services behind stet proxy, which claims; they settle. The proxy, PostgreSQL and the processes that are killed are real.

import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { after, test } from 'node:test';
import express from 'express';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/express';
import { idempotency as onFastify } from '@stet-go/stet/fastify';
import { change, charges, closeDatabase, hold, lasting, launch, post, proxy, sidecar } from './support.js';
import { charge, frameworks, ofWeb, start } from './service.js';

after(closeDatabase);

const forged = `c1.${'0'.repeat(64)}.${'0'.repeat(32)}.${'0'.repeat(16)}`;

for (const framework of frameworks) {
  const it = (name, run) => test(`${framework} behind the sidecar: ${name}`, { timeout: 60_000 }, run);
  const serve = async (t, handler = charge, options = {}) => {
    const service = await start(framework, handler, { sidecar: true, ...options });
    t.after(service.stop);
    const { url, lines } = await sidecar(t, service.url);
    return { url, lines, service };
  };
  const settling = async (t, env, more) => {
    const { url, child, kill } = await launch(framework, { STET_SIDECAR: '1', ...env });
    t.after(kill);
    return { child, url: (await sidecar(t, url, more)).url };
  };

  it('a retry gets the first response byte for byte', async (t) => {
    const body = randomBytes(100_000);
    const { url } = await serve(t, async (request) => {
      await charge({ ...request, reply: () => {} });
      request.reply(201, { 'Content-Type': 'application/octet-stream', 'X-List': ['a', 'b'], 'X-Latin': 'caf\u00e9', 'Set-Cookie': 'session=secret' }, body);
    });
    const key = randomUUID();
    const first = await post(url, { key });
    assert.deepEqual([first.status, first.body, first.headers['x-list'], first.headers['x-latin']], [201, body, ofWeb(framework) ? ['a, b'] : ['a', 'b'], ['caf\u00e9']], first.text.slice(0, 500));
    if (framework !== 'next') assert.deepEqual(first.headers['x-outer'], ['outer'], 'a retry does not reach the service: what middleware has set is stored, too');
    assert.equal(first.headers['set-cookie'], undefined, 'a stored header was returned');
    const retry = await post(url, { key });
    assert.deepEqual(retry.headers['idempotent-replayed'], ['true']);
    assert.deepEqual(lasting(retry), lasting(first));
    assert.equal(await charges(key), 1);
    assert.equal((await post(url, { key, body: '{"amount":43}' })).type, 'mismatch');
  });

  it('an empty response, and a refusal, are replayed', async (t) => {
    let status;
    const { url } = await serve(t, ({ reply }) => reply(status, { 'X-Done': 'yes' }, status === 204 ? undefined : 'no money'));
    for (status of [204, 402]) {
      const key = randomUUID();
      const first = await post(url, { key });
      assert.equal(first.status, status);
      assert.deepEqual(lasting(await post(url, { key })), lasting(first));
    }
  });

  it('a response too large to keep is sent once', async (t) => {
    const { url } = await serve(t, async (request) => {
      await charge({ ...request, reply: () => {} });
      request.reply(200, { 'Content-Type': 'text/plain' }, 'x'.repeat(2000));
    }, { maxResult: 1000 });
    const key = randomUUID();
    assert.equal((await post(url, { key })).text.length, 2000);
    assert.equal((await post(url, { key })).type, 'result-expired');
    assert.equal(await charges(key), 1);
  });

  it('a failed request is rolled back, and a retry runs again', async (t) => {
    let way;
    const { url, lines, service } = await serve(t, async (request) => {
      await charge({ ...request, reply: () => {} });
      if (way === 'ends') await request.client.query('SELECT 1; ROLLBACK');
      if (way === 'throws') throw new Error('no bank');
      if (way === 'aborts') await request.client.query('SELECT 1/0').catch(() => {});
      request.reply(typeof way === 'number' ? way : 201, {}, 'done');
    });
    for (const [given, status, type] of [['throws', 503, 'not-executed'], ['aborts', 503, 'not-executed'], ['ends', 503, 'not-executed'], [500, 503, 'not-executed'], [429, 429]]) {
      way = given;
      const key = randomUUID();
      const failed = await post(url, { key });
      assert.deepEqual([failed.status, failed.type, await charges(key)], [status, type, 0], `${given}: ${failed.text}`);
      way = '';
      const again = await post(url, { key });
      assert.equal(again.status, 201, `after ${given}: ${JSON.stringify(again.headers)} ${again.text}\n${lines.join('\n')}`);
      assert.equal(await charges(key), 1);
    }
    assert.ok(!service.logged.some((line) => line.includes('c1.')));
  });

  it('a handler that commits gets no success out, and does not run again', async (t) => {
    const { url, service } = await serve(t, async (request) => {
      await charge({ ...request, reply: () => {} });
      await request.client.query('SELECT 1; COMMIT');
      request.reply(201, {}, 'done');
    });
    const key = randomUUID();
    const first = await post(url, { key });
    assert.deepEqual([first.status, first.type, first.problem?.execution], [500, 'not-settled', 'may have executed'], first.text);
    const again = await post(url, { key });
    assert.deepEqual([again.status, again.text, again.headers['idempotent-replayed'], await charges(key)], [500, first.text, ['true'], 1]);
    assert.match(service.logged.join(), /has committed its transaction/);
  });

  it('duplicates charge once', async (t) => {
    const { url } = await serve(t);
    const key = randomUUID();
    const got = await Promise.all(Array.from({ length: 16 }, () => post(url, { key })));
    for (const { status, text } of got) assert.ok([201, 409].includes(status), text);
    assert.equal(await charges(key), 1);
  });

  it('a request that came by itself is refused, and logged once', async (t) => {
    const { service } = await serve(t, () => assert.fail('it ran'));
    for (const headers of [{}, { 'Idempotency-Key': 'k' }, { 'Stet-Claim': [forged, forged] }, { 'Stet-Claim': `${forged}0` }, { 'Stet-Claim': '' }, { 'Stet-Claim': forged.toUpperCase() }]) {
      const got = await post(service.url, { headers });
      assert.deepEqual([got.status, got.type, got.problem.execution], [500, 'misconfigured', 'not executed'], JSON.stringify(headers));
    }
    assert.deepEqual(service.logged.map((line) => /not come through|not one claim/.exec(line)?.[0]), ['not come through', 'not one claim']);
  });

  it('a claim that is none commits nothing', async (t) => {
    const { service } = await serve(t);
    const key = randomUUID();
    const got = await post(service.url, { key, headers: { 'Stet-Claim': forged } });
    assert.deepEqual([got.status, got.type, await charges(key)], [409, 'in-flight', 0]);
    assert.match(service.logged[0], /the claim of the sidecar has ended/);
    assert.ok(!service.logged.join().includes(forged));
  });

  it('a service killed before its COMMIT has charged nothing, and a retry charges once', async (t) => {
    const [dying, { url }] = [await settling(t, { STET_DIES: 'before' }), await serve(t)];
    const key = randomUUID();
    let got = await post(dying.url, { key });
    while (got.type === 'in-flight') got = await post(url, { key }); // PostgreSQL has not seen yet that its client is gone
    if (got.status !== 201) {
      assert.deepEqual([got.status, got.type, await charges(key)], [503, 'not-executed', 0], got.text);
      got = await post(url, { key });
    }
    assert.deepEqual([got.status, got.headers['idempotent-replayed']], [201, undefined], got.text);
    assert.deepEqual(lasting(await post(url, { key })), lasting(got));
    assert.equal(await charges(key), 1);
  });

  it('a service killed after its COMMIT is answered for', async (t) => {
    const [dying, { url }] = [await settling(t, { STET_DIES: 'after' }), await serve(t)];
    const key = randomUUID();
    const first = await post(dying.url, { key });
    assert.deepEqual([first.status, first.headers['idempotent-replayed'], await charges(key)], [201, undefined, 1], first.text);
    assert.match(first.headers.location[0], /^\/payments\/\d+$/);
    const retry = await post(url, { key });
    assert.deepEqual([lasting(retry), retry.headers['idempotent-replayed']], [lasting(first), ['true']]);
    assert.equal(await charges(key), 1);
  });

  it('an unacknowledged COMMIT is read by the sidecar', async (t) => {
    for (const way of ['after', 'before']) {
      const wire = await proxy(way);
      t.after(wire.close);
      const { url, service } = await serve(t, charge, { url: wire.url });
      const key = randomUUID();
      let got = await post(url, { key });
      assert.ok(wire.wasCut());
      assert.equal(got.status, way === 'after' ? 201 : 503, got.text);
      assert.match(service.logged.join(), /a COMMIT was not acknowledged; the sidecar/);
      while (['in-flight', 'not-executed'].includes(got.type)) got = await post(url, { key });
      assert.deepEqual([got.status, await charges(key)], [201, 1], got.text);
    }
  });

  it('a service that slept too long cannot charge any more', async (t) => {
    const lock = 4711 + frameworks.indexOf(framework);
    const [sleeping, { url }] = [await settling(t, { STET_WAIT: String(lock) }, ', lease: 1s, timeout: 1s'), await serve(t)];
    const letGo = await hold(lock);
    const charged = once(sleeping.child, 'message');
    const key = randomUUID();
    const late = post(sleeping.url, { key });
    await charged;
    sleeping.child.kill('SIGSTOP');
    await letGo();
    const told = await late;
    assert.deepEqual([told.status, told.type], [503, 'not-executed'], told.text);
    const first = await post(url, { key });
    assert.deepEqual([first.status, first.headers['idempotent-replayed']], [201, undefined]);
    const logs = once(sleeping.child, 'message');
    sleeping.child.kill('SIGCONT');
    assert.match((await logs)[0].line, /the claim of the sidecar has ended/);
    assert.equal(await charges(key), 1);
    assert.deepEqual(lasting(await post(url, { key })), lasting(first));
  });

  it('a record that was damaged in the meantime is no success', async (t) => {
    const { url, service } = await serve(t, async (request) => {
      await change(request.key, "fence = nextval('stet.records_fence')");
      await charge(request);
    });
    const key = randomUUID();
    const got = await post(url, { key });
    assert.notEqual(got.status, 201);
    assert.match(service.logged[0], /the claim of the sidecar has ended/);
    assert.equal(await charges(key), 0);
  });

  it('a service without the option does not run a claim of a sidecar', async (t) => {
    const service = await start(framework, () => assert.fail('it ran'));
    t.after(service.stop);
    const { url } = await sidecar(t, service.url);
    const key = randomUUID();
    assert.equal((await post(url, { key })).type, 'not-executed');
    assert.equal((await post(service.url, { key, headers: { 'Stet-Claim': forged } })).type, 'misconfigured');
    assert.equal(service.logged.length, 1);
    assert.match(service.logged[0], /sidecar: true/);
  });
}

test('a response that was not settled is no success', { timeout: 60_000 }, async (t) => {
  const app = express();
  app.post('/payments', (req, res) => { res.json({}); });
  const server = app.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => { server.closeAllConnections(); server.close(); });
  const { url } = await sidecar(t, `http://127.0.0.1:${server.address().port}`);
  assert.deepEqual((({ status, type }) => [status, type])(await post(url, { key: randomUUID() })), [500, 'not-settled']);
});

test('a body that express.json() has read will do', { timeout: 60_000 }, async (t) => {
  const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
  const app = express();
  app.use(express.json());
  app.post('/payments', idempotency({ pool, sidecar: true })((req, res) => { res.json(req.body); }));
  const server = app.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(async () => { server.closeAllConnections(); server.close(); await pool.end(); });
  const { url } = await sidecar(t, `http://127.0.0.1:${server.address().port}`);
  assert.equal((await post(url, { key: randomUUID() })).text, '{"amount":42}');
});

test('options that stet.yaml has are errors at once', () => {
  const pool = { connect() {} };
  for (const make of [idempotency, onFastify]) {
    make({ pool, sidecar: true, maxResult: 1000, keep: '1 hour' });
    for (const more of [{ scope() {} }, { namespace: '' }, { class: 'a' }, { name() {} }, { ref() {} }, { header: 'X-Key' }, { canonicalize() {} }]) {
      assert.throws(() => make({ pool, sidecar: true, ...more }), /behind the sidecar there is no option/);
    }
    assert.throws(() => make({ pool, sidecar: 'yes', scope() {} }), /must be true or false/);
  }
});
