#!/usr/bin/env node
// npx stet migrate: the tables of stet in PostgreSQL, without Go. All other commands are those of the program.

import { parseArgs } from 'node:util';
import { migrate, migrationStatus } from './migrate.js';
import { migrationSQL } from './migrations.js';
import { missing, run } from './program.js';

const usage = `Usage: npx stet migrate up|status|sql [flags]
       npx stet proxy|worker|keys|doctor|… [flags], by the program stet

  up      create or update the tables and functions, in one transaction
  status  show which steps are applied, and since when
  sql     print the SQL and change nothing

  --store URL           the database (default $STET_STORE, $STET_POSTGRES_URL or $DATABASE_URL)
  --store-schema NAME   schema of the tables (default stet)
  --store-table NAME    table of records (default records)
  --role NAME           up, sql: grant this role the rights of a service
  --mode NAME           the mode of the service: functions (default) or statements
  --messages            the service emits messages
  --no-transaction      sql: without BEGIN and COMMIT, for a migrator that has its own transaction
`;

const flags = {
  store: { type: 'string' }, 'store-schema': { type: 'string' }, 'store-table': { type: 'string' }, role: { type: 'string' }, mode: { type: 'string' },
  messages: { type: 'boolean' }, 'no-transaction': { type: 'boolean' }, help: { type: 'boolean', short: 'h' },
};

class UsageError extends Error {}

// read returns the command and its options.
function read(args) {
  let parsed;
  try {
    parsed = parseArgs({ args, options: flags, allowPositionals: true });
  } catch (error) {
    throw new UsageError(error.message);
  }
  const { values, positionals: [group, command, ...rest] } = parsed;
  if (values.help) return { command: 'help' };
  if (group !== 'migrate' || !['up', 'status', 'sql'].includes(command) || rest.length > 0) throw new UsageError('the commands are: migrate up, migrate status, migrate sql');
  const given = { schema: values['store-schema'], table: values['store-table'], role: values.role, mode: values.mode, messages: values.messages };
  const options = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  const { STET_STORE, STET_POSTGRES_URL, DATABASE_URL } = process.env;
  return { command, options, transaction: !values['no-transaction'], url: values.store || STET_STORE || STET_POSTGRES_URL || DATABASE_URL };
}

async function withDatabase(url, fn) {
  if (!url) throw new UsageError('which database? Give --store, or set STET_STORE, STET_POSTGRES_URL or DATABASE_URL');
  const { default: pg } = await import('pg').catch((cause) => { throw new Error('the package pg is needed: npm install pg', { cause }); });
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 10_000 });
  await client.connect();
  try {
    return await fn(client);
  } finally {
    await client.end();
  }
}

function table(states) {
  const rows = [['STEP', 'NAME', 'STATE', 'SINCE'], ...states.map(({ step, name, state, appliedAt }) =>
    [String(step), name, state, appliedAt === undefined ? '-' : appliedAt.toISOString().replace(/\.\d+Z$/, 'Z')])];
  const widths = rows[0].map((_, i) => Math.max(...rows.map((row) => row[i].length)));
  return rows.map((row) => row.map((cell, i) => (i < row.length - 1 ? cell.padEnd(widths[i] + 2) : cell)).join('')).join('\n');
}

async function main(args) {
  const { command, options, transaction, url } = read(args);
  const name = `${options?.schema ?? 'stet'}.${options?.table ?? 'records'}`;
  if (command === 'help') {
    process.stdout.write(usage);
  } else if (command === 'sql') {
    process.stdout.write(migrationSQL({ ...options, transaction }));
  } else if (command === 'status') {
    const { role: _, mode: __, messages: ___, ...of } = options;
    console.log(table(await withDatabase(url, (client) => migrationStatus(client, of))));
  } else {
    const { from, version } = await withDatabase(url, (client) => migrate(client, options));
    console.log(from === version ? `${name} is at version ${version} already` : `${name} is at version ${version}; it was at ${from}`);
    if (options.role !== undefined) console.log(`${options.role} has the rights of a service`);
  }
}

function report(error) {
  console.error(`stet: ${error.message.replace(/^stet: /, '')}`);
  if (error instanceof UsageError || error instanceof TypeError) console.error(`\n${usage}`);
  process.exitCode = error instanceof UsageError ? 2 : 1;
}

const args = process.argv.slice(2);
if (args.length === 0 || ['migrate', '--help', '-h'].includes(args[0])) {
  main(args).catch(report);
} else if (!run(args)) {
  report(new UsageError(`${args[0]}: ${missing()}`));
}
