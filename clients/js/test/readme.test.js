// The programs of README.md run.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { after, test } from 'node:test';
import fastify from 'fastify';
import pg from 'pg';
import { emit } from '@stet-go/stet';
import { idempotency } from '@stet-go/stet/fastify';
import { closeDatabase, post } from './support.js';

after(closeDatabase);

const AsyncFunction = (async () => {}).constructor;

// program returns the program of README.md that has this text, as a function of names.
async function program(text, ...names) {
  const page = await readFile(process.env.STET_README, 'utf8');
  const found = [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, code]) => code).filter((code) => code.includes(text));
  assert.equal(found.length, 1, text);
  return new AsyncFunction(...names, found[0].replace(/^import .*$/gm, ''));
}

test('the program for Fastify pays once, and a message is emitted', async (t) => {
  const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
  const app = fastify();
  t.after(async () => { await app.close(); await pool.end(); });
  const key = randomUUID();
  const routes = await program('@stet-go/stet/fastify', 'idempotency', 'app', 'pool');
  await routes(idempotency, app, pool);
  const messages = await program('await emit(', 'emit', 'client', 'account');
  app.post('/emits', idempotency({ pool, scope: () => 'one' })(async (request, reply, client) => {
    await messages(emit, client, 'acct 1');
    return { paid: true };
  }));
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  for (const replayed of [undefined, ['true']]) {
    const got = await post(url, { key, body: '{"amount": 42}' });
    assert.deepEqual([got.status, got.headers['idempotent-replayed']], [201, replayed], got.text);
  }
  assert.equal((await post(url, { key: randomUUID(), path: '/emits' })).status, 200);
});
