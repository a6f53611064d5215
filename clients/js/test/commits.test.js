// No way in which a handler ends its transaction commits its writes without an outcome.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import { Kysely, PostgresDialect, sql as kyselySQL } from 'kysely';
import pg from 'pg';
import { emit } from '@stet-go/stet';
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

// An emit whose row a savepoint has removed.
const undone = async (client) => {
  await client.query('BEGIN');
  await emit(client, { to: 'payments' });
  await client.query('ROLLBACK');
};

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
  'several statements, values, and no values': (client) => client.query({ text: 'SELECT 1; COMMIT', values: [1] }, []),
  'several statements, after an emit': async (client) => {
    await undone(client);
    await client.query('SELECT 1; COMMIT');
  },
  'a block': (client) => client.query('DO $$ BEGIN COMMIT; END $$'),
  'drizzle': (client) => drizzle(client).execute(sql`COMMIT`),
  'drizzle, several statements': (client) => drizzle(client).execute(sql.raw('SELECT 1; COMMIT')),
  'kysely': (client) => kyselySQL`COMMIT`.execute(kysely(client)),
  'a query class': submitted('COMMIT'),
  'a query class, and another transaction': submitted('SELECT 1; COMMIT; BEGIN'),
  'a query class, after an emit': async (client) => {
    await undone(client);
    await submitted('COMMIT')(client);
  },
  'a query class, after an emit, and another transaction': async (client) => {
    await undone(client);
    await submitted('SELECT 1; COMMIT; BEGIN')(client);
  },
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

test('a COMMIT of a query class is settled on a pool with one connection', { timeout: 15_000 }, async (t) => {
  const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE, max: 1 });
  t.after(() => pool.end());
  const service = await start('express', async ({ key, client, reply }) => {
    await client.query(`${write} ($1, 42)`, [key]);
    await submitted('COMMIT')(client).catch(() => {});
    reply(201, {}, 'paid');
  }, { pool });
  t.after(service.stop);
  const key = randomUUID();
  for (const replayed of [undefined, mode === 'functions' ? undefined : ['true']]) {
    const got = await post(service.url, { key });
    assert.deepEqual([got.status, got.headers['idempotent-replayed'], await charges(key)], [500, replayed, mode === 'functions' ? 0 : 1], got.text);
  }
});

// As SQLStatement of sql-template-strings, and Sql of sql-template-tag.
class Template {
  constructor(strings, ...values) {
    this.strings = strings;
    this.values = values;
  }

  get text() { return this.strings.reduce((text, more, i) => `${text}$${i}${more}`); }
}

test('a text that is a getter is sent', async (t) => {
  const tag = (strings, ...values) => new Template(strings, ...values);
  const service = await start('express', async ({ key, client, reply }) => {
    await client.query(tag`INSERT INTO charges (key, amount) VALUES (${key}, 42)`);
    const { rows } = await client.query(tag`SELECT 7 AS n`);
    reply(201, {}, String(rows[0].n));
  });
  t.after(service.stop);
  const key = randomUUID();
  const got = await post(service.url, { key });
  assert.deepEqual([got.status, got.text, await charges(key)], [201, '7', 1]);
});

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
