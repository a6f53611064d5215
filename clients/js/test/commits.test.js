// No way in which a handler ends its transaction commits its writes without an outcome.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import { Kysely, PostgresDialect, sql as kyselySQL } from 'kysely';
import { mode, start } from './service.js';
import { charges, closeDatabase, outcomes, post } from './support.js';

after(closeDatabase);

// A query that pg sends unchanged, as pg-cursor and pg-copy-streams are.
const raw = (text) => ({
  submit: (connection) => connection.query(text),
  handleRowDescription() {}, handleDataRow() {}, handleCommandComplete() {}, handleEmptyQuery() {}, handlePortalSuspended() {},
});
const submitted = (text) => (client) => new Promise((resolve, reject) => {
  client.query({ ...raw(text), handleReadyForQuery: resolve, handleError: reject });
});
const kysely = (client) => new Kysely({ dialect: new PostgresDialect({ pool: { connect: async () => client, end: async () => {} } }) });

const write = 'INSERT INTO charges (key, amount) VALUES ';
const endings = {
  'COMMIT': (client) => client.query('COMMIT'),
  'an object': (client) => client.query({ text: 'commit' }),
  'a callback': (client) => new Promise((resolve, reject) => { client.query('COMMIT', (error) => (error ? reject(error) : resolve())); }),
  'END after blanks': (client) => client.query('\n\t; ;END'),
  'nested comments': (client) => client.query('/* a /* b */ c */ -- d\nCOMMIT'),
  'COMMIT AND CHAIN': (client) => client.query('COMMIT AND CHAIN'),
  'PREPARE TRANSACTION': (client) => client.query("PREPARE TRANSACTION 'mine'"),
  'several statements': (client) => client.query('SELECT 1; COMMIT'),
  'several statements in an object': (client) => client.query({ text: 'SELECT 1; COMMIT', values: [] }),
  'several statements, and another transaction': (client, key) => client.query(`SELECT 1; COMMIT; BEGIN; ${write} ('${key}', 1)`),
  'several statements, and a late write': async (client, key) => {
    await client.query('SELECT 1; COMMIT');
    await client.query(`${write} ($1, 1)`, [key]);
  },
  'a block': (client) => client.query('DO $$ BEGIN COMMIT; END $$'),
  'drizzle': (client) => drizzle(client).execute(sql`COMMIT`),
  'drizzle, several statements': (client) => drizzle(client).execute(sql.raw('SELECT 1; COMMIT')),
  'kysely': (client) => kyselySQL`COMMIT`.execute(kysely(client)),
  'a query class': submitted('COMMIT'),
  'a query class, and another transaction': submitted('SELECT 1; COMMIT; BEGIN'),
  'a release': (client) => client.release(true),
  'a failed statement': (client) => client.query('SELECT 1 / 0'),
  'a constraint at COMMIT': (client) => client.query('SET CONSTRAINTS ALL IMMEDIATE'),
};

for (const [name, end] of Object.entries(endings)) for (const then of ['responds', 'throws']) {
  test(`${name}, and the handler ${then}`, { timeout: 30_000 }, async (t) => {
    const service = await start('express', async ({ key, client, reply }) => {
      await client.query(`${write} ($1, 42)`, [key]);
      await (async () => end(client, key))().catch(() => {});
      if (then === 'throws') throw new Error('after all');
      reply(201, {}, 'paid');
    });
    t.after(service.stop);
    const key = randomUUID();
    for (let i = 0; i < 3; i++) {
      const { status } = await post(service.url, { key });
      const [written, stored] = [await charges(key), await outcomes(key)];
      assert.ok(written <= 1, `it ran ${written} times`);
      assert.ok(written === 0 || stored === 1, `status ${status}: it was committed without an outcome`);
      if (status === 201) assert.deepEqual([written, stored], [1, 1]);
    }
  });
}

if (mode === 'functions') test('the error of a COMMIT without an outcome names the reason', async (t) => {
  let error;
  const service = await start('express', async ({ key, client, reply }) => {
    await client.query(`${write} ($1, 42)`, [key]);
    error = await client.query('SELECT 1; COMMIT').catch((e) => e);
    reply(201, {}, 'paid');
  });
  t.after(service.stop);
  const key = randomUUID();
  assert.deepEqual([(await post(service.url, { key })).status, await charges(key)], [500, 0]);
  assert.match(error.message, /has begun an operation and has neither settled nor released it: nothing was committed/);
});
