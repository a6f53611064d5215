// Creates the tables and functions in PostgreSQL, as 'stet migrate' does.

import { setTimeout as sleep } from 'node:timers/promises';
import { code } from './errors.js';
import { grants, migrationOptions, migrations } from './migrations.js';
import { functionName, literal, quote } from './statements.js';

const tries = 60;
const pause = 1000; // milliseconds
const lockNotInTime = '55P03';

// version is that of the tables; 0 if there are none. to_regclass would answer from before the lock.
async function versionOf(client, { schema, table }) {
  const { rowCount } = await client.query(`SELECT FROM pg_catalog.pg_class WHERE relname = ${literal(`${table}_schema`)}
    AND relnamespace IN (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = ${literal(schema)})`);
  if (rowCount === 0) return 0;
  const { rows } = await client.query(`SELECT coalesce(max(version), 0)::int4 AS version FROM ${quote(schema)}.${quote(`${table}_schema`)}`);
  return rows[0].version;
}

function supported(version, steps, { schema, table }) {
  if (version > steps.length) {
    throw new Error(`stet: the tables of ${schema}.${table} have version ${version}, and this package has versions up to ${steps.length}: use the version of the package that migrated them, or a later one`);
  }
  return version;
}

// connected calls fn with a client: client itself, or a connection of a pool.
async function connected(client, fn) {
  if (typeof client?.query !== 'function') throw new TypeError('stet: a Client or Pool of pg is needed');
  if (client.totalCount === undefined) return fn(client);
  const connection = await client.connect();
  try {
    return await fn(connection);
  } finally {
    connection.release();
  }
}

// inside reports whether a client has a transaction open: two statements of one have the same number.
async function inside(client) {
  const number = async () => (await client.query('SELECT pg_catalog.txid_current()::text AS xid')).rows[0].xid;
  return (await number()) === (await number());
}

async function transaction(client, fn) {
  await client.query('BEGIN ISOLATION LEVEL READ COMMITTED'); // at a higher level, versionOf would read from before the lock
  try {
    const result = await fn();
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {});
    throw error;
  }
}

// checkRole rejects if the role cannot begin an operation: GRANT by a role without the right to grant is only a warning.
async function checkRole(client, o) {
  const { rows: [{ may }] } = await client.query(`SELECT pg_catalog.has_function_privilege(${literal(o.role)}, ${literal(functionName(o, 'begin_raw'))}::regproc::oid, 'EXECUTE') AS may`);
  if (!may) throw new Error(`stet: the rights of ${o.role} were not granted; migrate as the owner of ${o.schema}.${o.table}`);
}

// keepingLockTimeout restores the caller's lock_timeout, which the steps set until the end of the transaction.
async function keepingLockTimeout(client, fn) {
  const { rows: [{ was }] } = await client.query("SELECT pg_catalog.current_setting('lock_timeout') AS was");
  const done = await fn(client);
  await client.query(`SET LOCAL lock_timeout = ${literal(was)}`);
  return done;
}

/**
 * Brings the tables and functions up to the version of this package, in one transaction, and grants the rights of a service to
 * options.role. It resolves to { from, version }: the version before and after. If the client has a transaction open, everything
 * is in that one, and the caller commits it.
 */
export async function migrate(client, options) {
  const o = migrationOptions(options);
  const steps = migrations(o);
  const apply = async (connection) => {
    await connection.query(steps[0].lock);
    const from = supported(await versionOf(connection, o), steps, o);
    for (const { version, name, up } of steps.slice(from)) {
      await connection.query(up).catch((error) => {
        error.message = `stet: migration ${version}, ${name}: ${error.message}${code(error) === '42501' ? ' (a role with CREATE on the database or the schema is needed)' : ''}`;
        throw error;
      });
    }
    for (const grant of grants(o)) await connection.query(grant);
    if (o.role !== undefined) await checkRole(connection, o);
    return { from, version: steps.length };
  };
  return connected(client, async (connection) => {
    if (await inside(connection)) return keepingLockTimeout(connection, apply);
    for (let n = 1; ; n++) {
      try {
        return await transaction(connection, () => apply(connection));
      } catch (error) {
        if (code(error) !== lockNotInTime || n === tries) throw error;
        await sleep(pause); // a long reader of the tables has the lock
      }
    }
  });
}

/** Resolves to the steps: { step, name, state: 'applied' or 'pending', appliedAt: a Date or undefined }. It changes nothing. */
export async function migrationStatus(client, options) {
  const o = migrationOptions(options);
  const steps = migrations(o);
  return connected(client, async (connection) => {
    const version = supported(await versionOf(connection, o), steps, o);
    const times = new Map();
    if (version > 0) {
      const { rows } = await connection.query(`SELECT version::int4, applied_at FROM ${quote(o.schema)}.${quote(`${o.table}_schema`)}`);
      for (const row of rows) times.set(row.version, row.applied_at);
    }
    return steps.map((step) => ({ step: step.version, name: step.name, state: step.version <= version ? 'applied' : 'pending', appliedAt: times.get(step.version) }));
  });
}
