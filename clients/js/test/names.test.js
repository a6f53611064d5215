// The namespace changes while processes with the old and the new name run. See docs/keys.md.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import pg from 'pg';
import { OperationError, operation } from '@stet-go/stet';
import { charge, mode, start } from './service.js';
import { charges, closeDatabase, lasting, post } from './support.js';

const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE, max: 8 });
after(async () => { await pool.end(); await closeDatabase(); });

const steps = [{ namespace: 'v1' }, { namespace: 'v2', previous: 'v1', claimPrevious: true }, { namespace: 'v2', previous: 'v1' }, { namespace: 'v2' }];
const neighbours = [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]];
const call = (key, step, fn, payload = { amount: 42 }) => operation(pool, { scope: 'acct_1', key, payload, mode, ...steps[step] }, fn);
const pay = async ({ client, key }) => { await client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [key]); return key; };
const fails = (reason) => (error) => error instanceof OperationError && error.reason === reason;

test('an outcome is valid in each neighbouring step', async () => {
  for (const [first, second] of [...neighbours, [0, 2]]) {
    const key = randomUUID();
    assert.deepEqual(await call(key, first, pay), { value: key, replayed: false });
    assert.deepEqual(await call(key, second, pay), { value: key, replayed: true });
    await assert.rejects(call(key, second, pay, { amount: 43 }), fails('mismatch'));
    assert.equal(await charges(key), 1);
  }
});

test('a transaction with one name excludes the other name', async () => {
  for (const [first, second] of neighbours) {
    const key = randomUUID();
    await call(key, first, async (op) => {
      await assert.rejects(call(key, second, pay), fails('in-flight'), `step ${second} while step ${first} runs`);
      return pay(op);
    });
    assert.equal((await call(key, second, pay)).replayed, true);
    assert.equal(await charges(key), 1);
  }
});

test('a rolled back operation runs under the other name', async () => {
  for (const [first, second] of neighbours) {
    const key = randomUUID();
    await assert.rejects(call(key, first, async (op) => { await pay(op); throw new Error('broken'); }), /broken/);
    assert.equal((await call(key, second, pay)).replayed, false);
    assert.equal(await charges(key), 1);
  }
});

test('wrong previous names are refused', async () => {
  for (const options of [{ namespace: 'v2', previous: 'v2' }, { previous: '' }, { claimPrevious: true }, { previous: 1 }]) {
    await assert.rejects(operation(pool, { scope: 'a', key: 'b', ...options }, pay), /the option previous/);
  }
});

test('two services, of which one has the old name, charge once', { timeout: 120_000 }, async (t) => {
  for (const old of [steps[0], steps[2]]) {
    const services = [await start('express', charge, old), await start('fastify', charge, steps[1])];
    for (const { stop } of services) t.after(stop);
    for (let n = 0; n < 10; n++) {
      const key = randomUUID();
      const answers = await Promise.all(Array.from({ length: 8 }, async (_, i) => {
        for (;;) {
          const got = await post(services[i % 2].url, { key });
          if (got.status !== 409) return got;
        }
      }));
      assert.equal(await charges(key), 1);
      for (const got of answers) assert.deepEqual([got.status, lasting(got).body], [201, answers[0].body], got.text);
    }
  }
});
