import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import { after, test } from 'node:test';
import express from 'express';
import fastify from 'fastify';
import pg from 'pg';
import { idempotency, keepBody } from '@stet-go/stet/express';
import { idempotency as onFastify } from '@stet-go/stet/fastify';
import { commits, mode } from './service.js';
import { charges, closeDatabase, post } from './support.js';

after(closeDatabase);

async function serve(t, route, options = {}) {
  const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
  const lines = [];
  const app = express();
  route(app, idempotency({ pool: options.pool?.(pool) ?? pool, scope: () => 'acct_1', mode, log: (line) => lines.push(line), ...options.more }), pool);
  app.use((error, req, res, next) => { res.status(500).json({ error: error.message }); void next; });
  const server = app.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(async () => { server.closeAllConnections(); server.close(); await pool.end(); });
  return { url: `http://127.0.0.1:${server.address().port}`, lines };
}

const write = (req, client) => client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [req.get('Idempotency-Key')]);

test('a handler that is protected twice is refused, and in-flight is never its outcome', { timeout: 60_000 }, async (t) => {
  for (const [body, more] of [['{"amount":42}', {}], ['', {}], ['{"amount":42}', { rollsBack: () => false }]]) {
    const { url, lines } = await serve(t, (app, protect) => {
      app.use(express.json({ verify: keepBody }));
      app.post('/payments', protect(async (req, res, client) => {
        await write(req, client);
        await protect(() => assert.fail('it ran'))(req, res, assert.ifError);
      }));
    }, { more });
    const key = randomUUID();
    for (let i = 0; i < 2; i++) {
      const got = await post(url, { key, body });
      assert.equal(got.status, 500, got.text);
      if (more.rollsBack === undefined) assert.equal(got.type, 'misconfigured');
      assert.equal(got.headers['idempotent-replayed'], undefined);
      assert.match(lines[i], /inside a protected handler/);
      assert.equal(await charges(key), 0);
    }
  }
});

test('scopes that UTF-8 cannot distinguish are refused', async (t) => {
  for (const scope of ['\ud800', 'a\udfff']) {
    const { url } = await serve(t, (app, protect) => app.post('/payments', protect(() => assert.fail('it ran'))), { more: { scope: () => scope } });
    assert.equal((await post(url, { key: randomUUID() })).type, 'misconfigured');
  }
});

// watched is a pool whose connections pass each text of a query to seen first.
const watched = (seen) => (pool) => ({
  async connect() {
    const client = await pool.connect();
    return new Proxy(client, {
      get(target, name) {
        if (name === 'query') return (...args) => seen(args[0], () => target.query(...args));
        const value = Reflect.get(target, name, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    });
  },
});

test('changes to a response during the COMMIT do not reach the caller', async (t) => {
  let tamper;
  const { url } = await serve(t, (app, protect) => app.post('/payments', protect(async (req, res, client) => {
    await write(req, client);
    res.set('X-Kept', 'first').status(201).json({});
    tamper = () => { res.statusCode = 418; res.removeHeader('Content-Type'); res.set('X-Kept', 'second').set('X-Late', 'late'); };
  })), { pool: watched((text, run) => { if (commits(text)) tamper(); return run(); }) });
  const key = randomUUID();
  for (let i = 0; i < 2; i++) {
    const { status, headers } = await post(url, { key });
    assert.deepEqual([status, headers['x-kept'], headers['x-late'], headers['content-type']], [201, ['first'], undefined, ['application/json; charset=utf-8']]);
  }
});

test('a COMMIT that cannot be read, because no connection is free, is outcome-unknown', { timeout: 60_000 }, async (t) => {
  let lost = false;
  const { url } = await serve(t, (app, protect) => app.post('/payments', protect(async (req, res, client) => {
    await write(req, client);
    res.json({});
  })), {
    pool: (pool) => {
      const { connect } = watched((what, run) => {
        const sent = run();
        if (commits(what) && !lost) {
          lost = true;
          what.done = what.done.then(() => { throw new Error('the connection broke'); });
        }
        return sent;
      })(pool);
      return { connect: () => (lost ? new Promise(() => {}) : connect()) };
    },
  });
  const key = randomUUID();
  const got = await post(url, { key });
  assert.deepEqual([got.status, got.type, got.problem?.execution, await charges(key)], [504, 'outcome-unknown', 'may have executed', 1]);
});

// late is a pool whose first COMMIT gets no answer. It arrives while the record is read, between the statement's snapshot and its end.
const late = (pool) => {
  let arrives;
  return {
    async connect() {
      const client = await pool.connect();
      const { query } = pg.Client.prototype, { release } = client;
      client.query = (what, ...more) => {
        if (arrives === undefined && commits(what)) {
          client.release = () => {}; // the server does not notice that the connection broke
          arrives = () => { query.call(client, what); release.call(client); };
          [what.sent, what.done] = [true, Promise.reject(new Error('the connection broke'))];
          return what;
        }
        const reading = arrives && what.statements?.find(({ text }) => text.includes('stet_begin_raw') || text.includes('pg_try_advisory_xact_lock'));
        if (reading) {
          reading.text = reading.text.replace('(SELECT 1) one', '(SELECT 1 FROM pg_catalog.pg_sleep(0.5)) one');
          setTimeout(arrives, 150);
          arrives = null;
        }
        return query.call(client, what, ...more);
      };
      return client;
    },
  };
};

test('a COMMIT that arrives while the record is read is found', { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t, (app, protect) => app.post('/payments', protect(async (req, res, client) => {
    await write(req, client);
    res.status(201).json({});
  })), { pool: late });
  const key = randomUUID();
  for (const replayed of [undefined, ['true']]) {
    const got = await post(url, { key });
    assert.deepEqual([got.status, got.headers['idempotent-replayed'], await charges(key)], [201, replayed, 1], got.text);
  }
});

test('two copies of the package prepare their own statements on one connection', async (t) => {
  const [one, other] = [await import('../node_modules/@stet-go/stet/src/batch.js?1'), await import('../node_modules/@stet-go/stet/src/batch.js?2')];
  const client = new pg.Client(process.env.STET_DATABASE);
  await client.connect();
  t.after(() => client.end());
  for (const { prepares } of [one, other]) await prepares(client);
  for (let i = 0; i < 2; i++) {
    for (const [{ send }, text] of [[one, 'a'], [other, 'b'], [one, 'a'], [other, 'c']]) {
      const { rows } = await send(client, [{ text: `SELECT '${text}' || $1`, values: ['!'] }]).done;
      assert.deepEqual(rows, [[`${text}!`]]);
    }
  }
});

test('a statement that the handler has left running does not hold its key permanently', { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t, (app, protect) => app.post('/payments', protect(async (req, res, client) => {
    await write(req, client);
    client.query('SELECT pg_sleep(50)').catch(() => {});
    res.json({});
  })));
  const key = randomUUID();
  const got = await post(url, { key });
  assert.deepEqual([got.status, got.type, got.problem?.execution, await charges(key)], [503, 'store-unavailable', 'not executed', 0]);
});

test('a handler that releases its client still has it, and its transaction commits', async (t) => {
  const { url } = await serve(t, (app, protect) => app.post('/payments', protect(async (req, res, client) => {
    try {
      await write(req, client);
      res.json({});
    } finally {
      client.release();
    }
  })));
  const key = randomUUID();
  const got = await post(url, { key });
  assert.equal(got.status, 200, got.text);
  assert.equal(await charges(key), 1);
});

test('HEAD has a response without its body', async (t) => {
  const { url } = await serve(t, (app, protect) => app.get('/payments', protect((req, res) => { res.json({ paid: true }); })));
  const key = randomUUID();
  for (const replayed of [undefined, 'true']) {
    const req = http.request(`${url}/payments`, { method: 'HEAD', headers: { 'Idempotency-Key': key } }).end();
    const [res] = await once(req, 'response');
    res.resume();
    assert.deepEqual([res.statusCode, res.headers['idempotent-replayed']], [200, replayed]);
  }
});

test('fields that a hook of Fastify sets on the raw response are not replayed', async (t) => {
  const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
  const app = fastify();
  let n = 0;
  app.addHook('onRequest', async (request, reply) => { reply.raw.setHeader('X-Request', String(++n)); });
  app.post('/payments', onFastify({ pool, scope: () => 'acct_1', mode })(async () => ({})));
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  t.after(async () => { app.server.closeAllConnections(); await app.close(); await pool.end(); });
  const key = randomUUID();
  for (const want of ['1', '2']) assert.deepEqual((await post(url, { key })).headers['x-request'], [want]);
});

test('a ROLLBACK behind another statement has nothing committed by itself', async (t) => {
  const { url } = await serve(t, (app, protect) => app.post('/payments', protect(async (req, res, client) => {
    await client.query('SELECT 1; ROLLBACK');
    await write(req, client);
    res.json({});
  })));
  const key = randomUUID();
  const got = await post(url, { key });
  assert.deepEqual([got.status, await charges(key)], [500, 0], got.text);
});
