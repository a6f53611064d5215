// The SQL of the package, with the names of its functions and tables.

import { channel } from './record.js';

export const quote = (name) => '"' + name.replaceAll('"', '""') + '"';
export const literal = (text) => `'${text.replaceAll("'", "''")}'`;

/** The quoted name of a function. */
export const functionName = ({ schema, table }, name) => `${quote(schema)}.${quote((table === 'records' ? 'stet_' : `${table}_`) + name)}`;

/** The rights of a service's role, for GRANT; names are the functions that it calls. */
export function rights(options, names) {
  const { schema, table, mode } = options;
  const list = [`USAGE ON SCHEMA ${quote(schema)}`, `EXECUTE ON FUNCTION ${names.map((name) => functionName(options, name)).join(', ')}`];
  if (mode === 'statements') {
    list.push(`INSERT, SELECT (id, fingerprint, fence, state, gone, expires_at, forget_at, status, content_type, head, body) ON ${quote(schema)}.${quote(table)}`,
      `USAGE ON SEQUENCE ${quote(schema)}.${quote(`${table}_fence`)}`);
  }
  return list;
}

const types = (...list) => list.map((type, i) => `$${i + 1}::${type}`);
const hex = (column) => `pg_catalog.encode(${column}, 'hex')`;
const seconds = (time) => `extract(epoch FROM ${time})::text`;
const now = 'pg_catalog.statement_timestamp()';

// In the transaction of this number; in another one, division by zero.
const inside = (fence, xid) => `${fence} / (pg_catalog.txid_current() = ${xid}::bigint)::integer`;

const begun = ['bytea', 'bytea', 'bytea', 'bytea', 'bigint', 'integer', 'integer', 'text', 'text', 'text', 'double precision'];
const settled = ['bytea', 'bytea', 'bigint', 'bigint', 'integer', 'text', 'bytea', 'bytea', 'boolean', 'boolean', 'double precision', 'double precision'];
const withMessages = ['text', 'integer', 'jsonb', 'text', 'bytea', 'boolean', 'boolean', 'double precision', 'double precision', 'integer'];

export function statements(options) {
  const of = (name) => functionName(options, name);
  const arguments_ = types(...settled);
  const packed = types(...withMessages);
  for (const i of [7, 8]) packed[i] = `pg_catalog.make_interval(secs => ${packed[i]})`;
  const messages = (max) => `SELECT FROM ${of('settle')}(${packed.with(9, max).join(', ')})`;
  return {
    begin: `SELECT action, fence::text, state, status::text, content_type, ${hex('head')}, ${hex('body')}, ${seconds(now)}, ${seconds('forget_at')}
      FROM ${of('begin_raw')}(${types(...begun).join(', ')})`,
    head: `SELECT headers::text, content_type FROM ${of('head')}($1::bytea)`,
    emit: `SELECT ${of('emit')}($1::text, $2::text, $3::bytea, $4::text, $5::jsonb) AS id`,
    settle: `SELECT FROM ${of('settle_raw')}(${arguments_.join(', ')})`,
    settleIn: `SELECT FROM ${of('settle_raw')}(${arguments_.with(2, inside('$3::bigint', '$13')).join(', ')})`,
    settleMessages: messages(packed[9]),
    settleMessagesIn: messages(inside(packed[9], '$11')),
    ...direct(options),
  };
}

// direct are the statements of the mode 'statements', which has no row before the outcome.
function direct(options) {
  const records = `${quote(options.schema)}.${quote(options.table)}`;
  const fence = literal(`${quote(options.schema)}.${quote(`${options.table}_fence`)}`);
  const begun = `pg_catalog.concat_ws(' ', pg_catalog.nextval(${fence}), pg_catalog.txid_current())`;
  const later = (span) => `${now} + pg_catalog.make_interval(secs => ${span}::double precision)`;
  const finished = {
    id: '$1::bytea', scope: '$2::bytea', fingerprint: '$3::bytea', owner: '$4::bytea', class: '$5::text', name: '$6::text', ref: '$7::text',
    fence: inside('$8::bigint', '$9'), attempt: '1', claimed_at: 'pg_catalog.now()', state: 'CASE WHEN $10::boolean THEN 3 ELSE 2 END',
    gone: '$11::boolean', status: '$12::smallint', content_type: '$13::text', head: '$14::bytea', body: '$15::bytea',
    settled_at: now, expires_at: later('$16'), forget_at: later('$17'), due_at: later('CASE WHEN $11::boolean THEN $17 ELSE $16 END'),
  };
  return {
    // The lock of the key and the fence, unless there is a record; 'settled' for one with an outcome. For other records, and
    // if another transaction has the lock, stet_begin_raw decides. The statement sees the record as of its start. If another
    // transaction has committed since, its record keeps the INSERT from succeeding.
    look: `SELECT CASE
        WHEN r.id IS NULL AND pg_catalog.pg_try_advisory_xact_lock($2::bigint) THEN
          CASE WHEN pg_catalog.pg_try_advisory_xact_lock($3::integer, $4::integer) THEN ${begun} ELSE ${begun} END
        WHEN r.state IN (2, 3) AND (r.forget_at IS NULL OR r.forget_at > ${now}) THEN
          CASE WHEN r.fingerprint <> $5::bytea THEN 'mismatch' WHEN r.gone OR r.expires_at <= ${now} THEN 'expired' ELSE 'replay' END
        END,
      r.fence::text, CASE WHEN r.state = 3 THEN 'failed' ELSE 'completed' END, r.status::text, r.content_type, ${hex('r.head')}, ${hex('r.body')}, ${seconds(now)}, ${seconds('r.forget_at')}
      FROM (SELECT 1) one LEFT JOIN ${records} r ON r.id = $1::bytea`,
    finish: `INSERT INTO ${records} AS r (${Object.keys(finished).join(', ')}) VALUES (${Object.values(finished).join(', ')})
      RETURNING (CASE WHEN NOT pg_catalog.pg_try_advisory_xact_lock($18::bigint) THEN pg_catalog.pg_notify(${literal(channel(options))}, ${hex('r.id')}) END) IS NULL`,
  };
}
