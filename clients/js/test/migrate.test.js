// The tables are created without Go, by each documented way.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { drizzle } from 'drizzle-orm/node-postgres';
import { migrate as drizzleMigrate } from 'drizzle-orm/node-postgres/migrator';
import knex from 'knex';
import pg from 'pg';
import { migrate, migrationSQL, migrationStatus, migrations } from '@stet-go/stet';
import { start } from './service.js';
import { closeDatabase, post } from './support.js';

const owner = new pg.Pool({ connectionString: process.env.STET_OWNER, max: 6 });
const steps = migrations().length;

after(async () => { await owner.end(); await closeDatabase(); });

let schemas = 0;
const fresh = () => `made_${process.env.STET_MODE}_${++schemas}`;
const versions = async (schema) => (await migrationStatus(owner, { schema })).filter(({ state }) => state === 'applied').map(({ step }) => step);
const all = Array.from({ length: steps }, (_, i) => i + 1);

test('concurrent callers migrate once, and later calls change nothing', async () => {
  const schema = fresh();
  assert.deepEqual(await versions(schema), []);
  const done = await Promise.all(Array.from({ length: 4 }, () => migrate(owner, { schema })));
  assert.deepEqual(done.map(({ from }) => from).sort(), [0, steps, steps, steps]);
  const before = await migrationStatus(owner, { schema });
  assert.deepEqual(await migrate(owner, { schema }), { from: steps, version: steps });
  assert.deepEqual(await migrationStatus(owner, { schema }), before);
  assert.deepEqual(before.map(({ appliedAt }) => appliedAt instanceof Date), all.map(() => true));
});

test('a role has the rights of a service after migrate, and without it not', async (t) => {
  const role = 'migrated';
  await owner.query(`DO $$ BEGIN CREATE ROLE ${role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$; GRANT INSERT, SELECT ON charges TO ${role}; GRANT USAGE ON SEQUENCE charges_id_seq TO ${role}`);
  const schema = fresh(), table = 'or"ders';
  await migrate(owner, { schema, table });
  const url = new URL(process.env.STET_DATABASE);
  url.username = role;
  const service = await start('express', async ({ client, key, reply }) => {
    await client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [key]);
    reply(201, {}, 'paid');
  }, { url: url.href, schema, table });
  t.after(service.stop);
  const key = randomUUID();
  assert.equal((await post(service.url, { key })).type, 'misconfigured');
  await migrate(owner, { schema, table, role, mode: process.env.STET_MODE });
  assert.equal((await post(service.url, { key })).status, 201);
  assert.deepEqual((await post(service.url, { key })).headers['idempotent-replayed'], ['true']);
});

test('in a transaction of the caller, migrate commits nothing', async () => {
  const schema = fresh();
  const client = await owner.connect();
  await client.query('BEGIN');
  assert.deepEqual(await migrate(client, { schema }), { from: 0, version: steps });
  await client.query('ROLLBACK');
  client.release();
  assert.deepEqual(await versions(schema), []);
});

test('tables of a newer version are refused, and so are wrong options', async () => {
  const schema = fresh();
  await migrate(owner, { schema });
  await owner.query(`INSERT INTO ${schema}.records_schema (version) VALUES (${steps + 1})`);
  await assert.rejects(migrate(owner, { schema }), new RegExp(`have version ${steps + 1}, and this package has versions up to ${steps}`));
  await assert.rejects(migrationStatus(owner, { schema }), /a later one/);
  for (const [options, message] of [[{ schema: '' }, /option schema/], [{ table: 'x'.repeat(60) }, /1 to 51 bytes/], [{ tables: 'x' }, /no option tables/], [{ mode: 'x' }, /option mode/], [{ role: '' }, /option role/]]) {
    assert.throws(() => migrationSQL(options), message);
  }
});

test('a failed step leaves nothing, and its error names the step', async () => {
  const schema = fresh();
  await owner.query(`CREATE SCHEMA ${schema}; CREATE FUNCTION ${schema}.stet_begin() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION ${schema}.stet_claim(claim text) RETURNS int LANGUAGE sql AS 'SELECT 1'`);
  await assert.rejects(migrate(owner, { schema }), /migration 2, functions: /);
  assert.deepEqual(await versions(schema), []);
});

test('Knex migrates in its own transaction', async (t) => {
  const schema = fresh();
  const db = knex({ client: 'pg', connection: process.env.STET_OWNER, pool: { min: 0, max: 1 } });
  t.after(() => db.destroy());
  const up = async (knex) => { await migrate(await knex.client.acquireConnection(), { schema }); };
  await db.migrate.latest({ tableName: `knex_${schema}`, migrationSource: { getMigrations: async () => ['stet'], getMigrationName: (name) => name, getMigration: async () => ({ up, down: async () => {} }) } });
  assert.deepEqual(await versions(schema), all);
});

test('Drizzle migrates by the script without transactions', async (t) => {
  const schema = fresh();
  const folder = await mkdtemp(join(tmpdir(), 'stet-'));
  t.after(() => rm(folder, { recursive: true }));
  await mkdir(join(folder, 'meta'));
  await writeFile(join(folder, 'meta', '_journal.json'), JSON.stringify({ version: '7', dialect: 'postgresql', entries: [{ idx: 0, version: '7', when: 1, tag: '0000_stet', breakpoints: true }] }));
  await writeFile(join(folder, '0000_stet.sql'), migrationSQL({ schema, transaction: false }));
  await drizzleMigrate(drizzle(owner), { migrationsFolder: folder, migrationsSchema: `drizzle_${schema}` });
  assert.deepEqual(await versions(schema), all);
});

test('the script runs as one text, as Prisma runs the file of a migration', async () => {
  for (const transaction of [true, false]) {
    const schema = fresh();
    await owner.query(migrationSQL({ schema, role: 'shop', transaction }));
    assert.deepEqual(await versions(schema), all);
    const { rows } = await owner.query('SELECT has_function_privilege($1, oid, $2) AS may FROM pg_proc WHERE proname = $3 AND pronamespace = $4::regnamespace', ['shop', 'EXECUTE', 'stet_begin_raw', schema]);
    assert.deepEqual(rows, [{ may: true }]);
  }
});

test('in a transaction of the caller, its lock_timeout stays', async () => {
  for (const work of [(client, of) => migrate(client, of), (client, of) => client.query(migrationSQL({ ...of, transaction: false }))]) {
    const client = await owner.connect();
    await client.query('BEGIN');
    await work(client, { schema: fresh() });
    const { rows } = await client.query('SHOW lock_timeout');
    await client.query('ROLLBACK');
    client.release();
    assert.deepEqual(rows, [{ lock_timeout: '0' }]);
  }
});

test('a role that cannot grant the rights is an error, and not a warning', async (t) => {
  const schema = fresh(), role = `${schema}_clerk`;
  await migrate(owner, { schema });
  await owner.query(`CREATE ROLE ${role} LOGIN; GRANT USAGE ON SCHEMA ${schema} TO ${role}; GRANT SELECT ON ${schema}.records_schema TO ${role}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ${schema} TO ${role}`);
  const url = new URL(process.env.STET_OWNER);
  url.username = role;
  const clerk = new pg.Pool({ connectionString: url.href });
  t.after(async () => { await clerk.end(); await owner.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`); });
  await assert.rejects(migrate(clerk, { schema, role: 'stranger' }), /rights of stranger were not granted/);
  await migrate(owner, { schema, role: 'stranger' });
  await migrate(clerk, { schema, role: 'stranger' });
});

test('concurrent callers migrate once at any default isolation level', async (t) => {
  const schema = fresh();
  const strict = new pg.Pool({ connectionString: process.env.STET_OWNER, options: '-c default_transaction_isolation=serializable' });
  t.after(() => strict.end());
  const done = await Promise.all(Array.from({ length: 4 }, () => migrate(strict, { schema })));
  assert.deepEqual(done.map(({ from }) => from).sort(), [0, steps, steps, steps]);
});

test('a script without transactions that fails as one text leaves nothing', async () => {
  const schema = fresh();
  await owner.query(`CREATE SCHEMA ${schema}; CREATE FUNCTION ${schema}.stet_claim(claim text) RETURNS int LANGUAGE sql AS 'SELECT 1'`);
  await assert.rejects(owner.query(migrationSQL({ schema, transaction: false })), /stet_claim/);
  assert.deepEqual(await versions(schema), []);
});
