// The steps of the tables in PostgreSQL, with the names of a service in them: the same text as postgres.Migrations of Go.

import { readdirSync, readFileSync } from 'node:fs';
import { numberOf } from './record.js';
import { literal, quote, rights } from './statements.js';

const folder = new URL('../migrations/', import.meta.url);

// functions are those of the steps, without the beginning of their names; unsettled is a constraint.
const functions = ['begin', 'begin_raw', 'claim', 'digest', 'emit', 'fenced', 'fields', 'fingerprint', 'head', 'id', 'number', 'own', 'part',
  'release', 'settle', 'settle_raw', 'sweep', 'tell', 'unsent', 'unsettled', 'wait_lock'];
const suffixes = ['_pkey', '_fence', '_due', '_open', '_run', '_relay', '_schema', '_emitted', '_empty', '_history'];
const limits = { schema: 63, table: 63 - '_fingerprint'.length }; // bytes, of PostgreSQL
const known = new Set(['schema', 'table', 'role', 'mode', 'messages']);

/** The options of a migration with their defaults. Wrong ones are errors. */
export function migrationOptions(options = {}) {
  const o = { schema: 'stet', table: 'records', mode: 'functions', messages: false, ...options };
  for (const name of Object.keys(o)) if (!known.has(name)) throw new TypeError(`stet: there is no option ${name}`);
  for (const [name, limit] of Object.entries(limits)) {
    const value = o[name];
    if (typeof value !== 'string' || value === '' || !value.isWellFormed() || Buffer.byteLength(value) > limit || value.includes('\0')) {
      throw new TypeError(`stet: the option ${name} is ${JSON.stringify(value)}; it must be text of 1 to ${limit} bytes, without NUL`);
    }
  }
  if (o.role !== undefined && (typeof o.role !== 'string' || o.role === '' || o.role.includes('\0'))) throw new TypeError('stet: the option role must be the name of a role');
  if (!['functions', 'statements'].includes(o.mode)) throw new TypeError("stet: the option mode must be 'functions' or 'statements'");
  if (typeof o.messages !== 'boolean') throw new TypeError('stet: the option messages must be true or false');
  return o;
}

// replacements are the names in the files, and those of the options.
function replacements({ schema, table }) {
  const view = schema === 'stet' && table === 'records' ? 'operations' : `${table}_view`;
  const body = BigInt.asUintN(64, numberOf('body', schema, table)).toString(16).padStart(16, '0');
  const pairs = [
    [`'"stet"."records_fence"'`, literal(`${quote(schema)}.${quote(`${table}_fence`)}`)],
    [`'"stet"."operations"'`, literal(`${quote(schema)}.${quote(view)}`)],
    ['"stet"', quote(schema)], [`'stet'`, literal(schema)], ['$stet$', `$stet_${body}$`],
    ['"records"', quote(table)], ['"operations"', quote(view)], [`'records'`, literal(table)],
    ...suffixes.map((suffix) => [`"records${suffix}"`, quote(table + suffix)]),
  ];
  for (const name of functions) {
    const own = (table === 'records' ? 'stet_' : `${table}_`) + name;
    pairs.push([`"stet_${name}"`, quote(own)], [`'"stet"."stet_${name}"'`, literal(`${quote(schema)}.${quote(own)}`)]);
  }
  return new Map(pairs);
}

/**
 * The steps in order, each { version, name, lock, up }. Execute lock and then up in one transaction: up is SQL of several
 * statements, and records its version itself.
 */
export function migrations(options) {
  const { schema, table } = migrationOptions(options);
  const names = replacements({ schema, table });
  const any = new RegExp([...names.keys()].map((name) => name.replace(/[$.]/g, '\\$&')).join('|'), 'g');
  const lock = `SELECT pg_advisory_xact_lock(${numberOf('migrate', schema, table)})`;
  return readdirSync(folder).filter((file) => file.endsWith('.up.sql')).sort().map((file, i) => {
    const [, name] = /^\d+_(\w+)\.up\.sql$/.exec(file);
    const text = readFileSync(new URL(file, folder), 'utf8').replace(any, (found) => names.get(found));
    return { version: i + 1, name, lock, up: `SET LOCAL lock_timeout = '2s';\n${text}` };
  });
}

/** The statements that grant a role the rights of a service; none without a role. */
export function grants(options) {
  const { role, messages, ...o } = migrationOptions(options);
  if (role === undefined) return [];
  return rights(o, ['begin_raw', 'settle_raw', ...(messages ? ['emit', 'settle'] : [])]).map((right) => `GRANT ${right} TO ${quote(role)}`);
}

/**
 * The steps and the grants as one script. Each step is in a transaction of its own; with transaction: false the script has
 * none, for a migrator that runs it in its own transaction.
 */
export function migrationSQL({ transaction = true, ...options } = {}) {
  const { schema, table } = migrationOptions(options);
  const name = JSON.stringify(`${schema}.${table}`);
  const [begin, commit] = transaction ? ['BEGIN;\n', 'COMMIT;\n'] : ['', ''];
  const steps = migrations(options).map((step) =>
    `-- ${name}, step ${step.version} ${step.name}, up\n${begin}${step.lock};\n\n${step.up.trim()}\n${commit}`);
  const unset = transaction ? [] : ['SET LOCAL lock_timeout TO DEFAULT;\n']; // or it would apply to later migrations of the transaction
  return steps.concat(unset, grants(options).map((grant) => `${grant};\n`)).join('');
}
