// Query builders that are given the handler's client.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import { Kysely, PostgresDialect } from 'kysely';
import { start } from './service.js';
import { charges, closeDatabase, post } from './support.js';

after(closeDatabase);

// Each has: begin(client), which returns { write(key), transaction(fn) }, where fn gets the same of the inner transaction.
const onDrizzle = (db) => ({
  write: (key) => db.execute(sql`INSERT INTO charges (key, amount) VALUES (${key}, 1)`),
  transaction: (fn) => db.transaction((inner) => fn(onDrizzle(inner))),
});
const onKysely = (db) => ({
  write: (key) => db.insertInto('charges').values({ key, amount: 1 }).execute(),
  transaction: (fn) => db.transaction().execute((inner) => fn(onKysely(inner))),
});
const builders = {
  drizzle: (client) => onDrizzle(drizzle(client)),
  kysely: (client) => onKysely(new Kysely({ dialect: new PostgresDialect({ pool: { connect: async () => client, end: async () => {} } }) })),
};

for (const [name, of] of Object.entries(builders)) test(`${name}: its transactions are savepoints of the handler's`, async (t) => {
  let fails = false;
  const service = await start('express', async ({ key, client, reply }) => {
    const db = of(client);
    await db.write(key);
    await db.transaction((inner) => inner.write(key));
    const undone = db.transaction(async (inner) => {
      await inner.write(key);
      throw new Error('undo');
    });
    await assert.rejects(undone, /undo/);
    if (fails) throw new Error('all of it');
    reply(201, {}, 'paid');
  });
  t.after(service.stop);
  const key = randomUUID();
  fails = true;
  assert.deepEqual([(await post(service.url, { key })).status, await charges(key)], [500, 0]);
  fails = false;
  for (const replayed of [undefined, ['true']]) {
    const got = await post(service.url, { key });
    assert.deepEqual([got.status, got.headers['idempotent-replayed'], await charges(key)], [201, replayed, 2], got.text);
  }
});
