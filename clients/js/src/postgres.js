// One transaction of node-postgres, with the business writes and the outcome.

import { setTimeout as sleep } from 'node:timers/promises';
import { lets } from './emit.js';
import { problem } from './problem.js';

const commitTimeout = 10_000; // for the answer to COMMIT, and again for looking the record up

const quote = (name) => '"' + name.replaceAll('"', '""') + '"';

const settlement = '($1::text, $2::integer, $3::jsonb, $4::text, $5::bytea, NULL, $6::boolean, $7::interval, $8::interval, $9::integer)';

function functions({ schema, table }) {
  const prefix = `${quote(schema)}.`;
  const of = (name) => prefix + quote((table === 'records' ? 'stet' : table) + name);
  return {
    begin: `SELECT action, claim, state, status::text, headers::text, content_type, body, fence::text
      FROM ${of('_begin')}($1::text, $2::text, $3::bytea, $4::text, $5::text, $6::text, $7::text)`,
    emit: `SELECT ${of('_emit')}($1::text, $2::text, $3::bytea, $4::text, $5::jsonb) AS id`,
    settle: `SELECT FROM ${of('_settle')}${settlement}`,
    // In the transaction of this number; in another one nothing happens, and settled is null.
    settleIn: `SELECT CASE WHEN pg_catalog.txid_current() = $10::bigint THEN (SELECT true FROM ${of('_settle')}${settlement}) END AS settled`,
  };
}

/**
 * Begins a transaction, and asks what to do with an operation. With the action run the transaction
 * is open and is tx; with any other it has ended. What the sidecar has claimed runs.
 */
export async function begin(options, operation) {
  const tx = new Transaction(options, operation, await options.pool.connect());
  try {
    await tx.connection.query('BEGIN ISOLATION LEVEL READ COMMITTED');
    const row = await (operation.claim === undefined ? asked(tx, options, operation) : numbered(tx, operation));
    tx.claim = row.claim;
    tx.fence = row.fence;
    if (row.action !== 'run') await tx.rollback();
    else tx.watch();
    return { ...row, tx };
  } catch (error) {
    tx.abandon();
    throw error;
  }
}

async function asked({ connection }, options, operation) {
  const { rows } = await connection.query(functions(options).begin, [operation.scope, operation.key, operation.fingerprint, options.namespace,
    options.class, operation.name, operation.ref]);
  return rows[0];
}

// numbered has PostgreSQL say which transaction this is. It has no row of stet_begin, without whose
// outcome nothing could be committed. Therefore only this transaction can settle.
async function numbered(tx, { claim }) {
  const { rows } = await tx.connection.query('SELECT pg_catalog.txid_current()::text AS xid');
  tx.xid = rows[0].xid;
  return { action: 'run', claim };
}

class Transaction {
  open = true;
  used = false; // by the handler
  committed = false;
  depth = 0; // of savepoints that stand for transactions of the handler's

  constructor(options, operation, connection) {
    this.options = options;
    this.operation = operation;
    this.connection = connection;
    this.broken = () => {}; // without a listener pg throws the error
    connection.on('error', this.broken);
    this.client = guarded(this);
    lets(this.client, (message) => this.emit(message));
  }

  async emit(message) {
    try {
      const { rows } = await this.client.query(functions(this.options).emit, [this.claim, ...message]);
      return rows[0].id;
    } catch (error) {
      const todo = advice(this.options, error, ['emit']);
      if (todo !== '') this.options.log(`a message could not be emitted, and nothing is committed${todo}`, described(error));
      throw error;
    }
  }

  // watch closes the client once the server says that there is no transaction: "SELECT 1; ROLLBACK"
  // has ended it, and each later statement would be committed by itself.
  watch() {
    const wire = this.connection.connection;
    const ready = ({ status }) => { if (status === 'I') this.open = false; };
    wire?.on?.('readyForQuery', ready);
    this.unwatch = () => wire?.off?.('readyForQuery', ready);
  }

  // release returns the connection to the pool. Code of the handler that still runs cannot write any more.
  release(destroy) {
    this.open = false;
    if (this.connection === undefined) return;
    const connection = this.connection;
    this.connection = undefined;
    this.unwatch?.();
    if (!destroy) connection.off('error', this.broken);
    connection.release(destroy);
  }

  /** Ends the connection, and with it the transaction, as soon as the server notices. */
  abandon() {
    this.release(true);
  }

  /** Waits for the handler's running statements and rolls back. */
  async rollback() {
    this.open = false;
    if (this.connection === undefined) return;
    const done = await within(commitTimeout, this.connection.query('ROLLBACK')).then(() => true, () => false);
    this.release(!done);
  }

  /**
   * Settles and commits. It returns { action: 'committed' } if that succeeded. If COMMIT was not acknowledged, it returns
   * the row of stet_begin for another outcome, the action 'nothing' if there is none, or 'unknown' if that could not be
   * read or the sidecar must read it. Before COMMIT was sent, it throws.
   */
  async commit({ status, headers, contentType, body, gone }) {
    const { maxResult, keep, tombstone } = this.options;
    const { connection } = this;
    this.open = false;
    try {
      const values = [this.claim, status, JSON.stringify(headers), contentType, body, gone, keep, tombstone, maxResult];
      const { settle, settleIn } = functions(this.options);
      const query = this.xid === undefined ? connection.query(settle, values) : connection.query(settleIn, [...values, this.xid]);
      const { rows } = await within(commitTimeout, query); // the handler may have left something running
      if (this.xid !== undefined && rows[0].settled !== true) await this.ended();
      if (this.late !== undefined) throw this.late;
    } catch (error) {
      await this.rollback();
      const todo = error === this.late ? '' : advice(this.options, error, ['settle']); // late may be the handler's, about a table of its own
      if (todo !== '') this.options.log(`an outcome could not be stored; it was rolled back${todo}`, described(error));
      throw error;
    }
    let answer;
    try {
      answer = await within(commitTimeout, connection.query('COMMIT'));
    } catch (error) {
      this.abandon();
      if (refused(error)) throw error;
      if (this.xid !== undefined) {
        this.options.log('a COMMIT was not acknowledged; the sidecar determines its outcome', described(error));
        return { action: 'unknown' };
      }
      return this.lookUp();
    }
    this.release(false);
    this.committed = answer.command === 'COMMIT';
    if (!this.committed) throw new Error('stet: the transaction was rolled back by something else than stet');
    return { action: 'committed' };
  }

  /**
   * Settles after the handler has ended the transaction itself. Without a row of stet_begin, PostgreSQL cannot refuse
   * its COMMIT. If it has committed, a failure is stored, so that a retry does not run again.
   */
  async ended() {
    const { rows } = await within(commitTimeout, this.connection.query('SELECT pg_catalog.txid_status($1::bigint) AS ended', [this.xid]));
    if (rows[0].ended !== 'committed') {
      this.late ??= new Error('stet: the handler has rolled back its transaction; nothing was settled, and a retry runs again');
      return;
    }
    this.late = new Error('stet: the handler has committed its transaction: its writes are committed, and a retry receives a failure so that it does not run again');
    this.options.log(this.late.message);
    const { headers, ...failure } = problem('not-settled', { base: this.options.problemBase });
    const { 'Content-Type': type, ...fields } = headers;
    const { maxResult, keep, tombstone } = this.options;
    await within(commitTimeout, this.connection.query(functions(this.options).settle,
      [this.claim, failure.status, JSON.stringify(fields), type, failure.body, false, keep, tombstone, maxResult]));
    await within(commitTimeout, this.connection.query('COMMIT')); // if a transaction is open
  }

  /** Reads, on another connection, the outcome of an unacknowledged COMMIT. The old
   * transaction holds its key until it has ended. "run" therefore proves that nothing was committed. */
  async lookUp() {
    const until = Date.now() + commitTimeout;
    for (let pause = 25; ; pause = Math.min(2 * pause, 500)) {
      const begun = begin(this.options, this.operation);
      try {
        const row = await within(Math.max(until - Date.now(), 1), begun);
        if (row.action === 'run') {
          await row.tx.rollback();
          return { action: 'nothing' };
        }
        if (row.fence === this.fence && (row.action === 'replay' || row.action === 'expired')) return { action: 'committed' };
        if (row.action !== 'in_flight') return row;
      } catch (error) {
        begun.then(({ action, tx }) => action === 'run' && tx.rollback(), () => {}); // in case it comes later
        if (kind(error) !== 'unavailable') this.options.log('the outcome of a COMMIT could not be read yet', described(error));
      }
      if (Date.now() > until) return { action: 'unknown' };
      await sleep(pause);
    }
  }
}

// within bounds how long a promise is waited for. A later result is ignored.
async function within(milliseconds, promise) {
  let timer;
  const over = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('stet: PostgreSQL does not answer')), milliseconds);
  });
  try {
    return await Promise.race([promise, over]);
  } finally {
    clearTimeout(timer);
    promise.catch(() => {});
  }
}

// refused reports whether an error of COMMIT proves that nothing was committed: the server has
// answered, and neither ended nor broke.
function refused(error) {
  return code(error) !== '' && !/^(?:08|40003|53|57P|58|XX)/.test(code(error));
}

/**
 * What an error of PostgreSQL's means where nothing was committed: 'unavailable', the same request
 * may be sent again; 'unreadable', of a stored outcome; 'fenced', the claim has ended; 'wiring', of
 * how stet is used; else 'other'.
 */
export function kind(error) {
  const c = code(error);
  if (c === 'ST004' || c === 'ST005') return 'unreadable';
  if (c === 'ST002') return 'fenced';
  if (c.startsWith('ST')) return 'wiring';
  return c === '' || /^(?:08|40|53|55P03|57|58|XX)/.test(c) ? 'unavailable' : 'other';
}

// code is the SQLSTATE of an error, '' if it has none. Codes of the system begin with E.
function code(error) {
  return typeof error?.code === 'string' && /^[0-9A-DF-Z][0-9A-Z]{4}$/.test(error.code) ? error.code : '';
}

/** What to do about a database that is not prepared; '' for other errors. names are the functions that were needed. */
export function advice({ schema, table }, error, names = ['begin', 'settle']) {
  if (['3F000', '42883'].includes(code(error))) { // no such schema, no such function
    return `. Run: stet migrate up --store-schema ${schema} --store-table ${table}, as the owner of the database`;
  }
  if (code(error) !== '42501') return '';
  const functions = names.map((name) => `${quote(schema)}.${quote(`${table === 'records' ? 'stet' : table}_${name}`)}`).join(', ');
  return `. Run, as the owner of the database: GRANT USAGE ON SCHEMA ${quote(schema)} TO your_role; GRANT EXECUTE ON FUNCTION ${functions} TO your_role`;
}

/** What may be logged of an error: not its details, which can have values of rows. */
export function described(error) {
  return [error?.code, error?.message].filter((text) => text).join(': ');
}

const space = String.raw`(?:\s|--[^\n\r]*(?:[\n\r]|$)|/\*(?:[^*]|\*(?!/))*\*/)`;
const control = new RegExp(String.raw`^${space}*(BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b`, 'i');
// The whole text, with nothing behind it that would be lost, and no mode that a savepoint does not have.
const plain = new RegExp(String.raw`^${space}*(?:START\s+TRANSACTION|(?:BEGIN|COMMIT|END|ABORT|ROLLBACK)(?:\s+(?:WORK|TRANSACTION))?)` +
  String.raw`(?:\s+ISOLATION\s+LEVEL\s+READ\s+COMMITTED)?(?:\s+READ\s+WRITE)?${space}*;?${space}*$`, 'i');

// nested replaces a statement that begins or ends a transaction inside the handler's, as query builders send it: the
// replacement does so with a savepoint. It is undefined for other statements.
function nested(tx, verb, text) {
  const savepoint = (n) => `stet_savepoint_${n}`;
  if (!plain.test(text)) return undefined;
  if (/^(?:BEGIN|START)/i.test(verb)) return `SAVEPOINT ${savepoint(++tx.depth)}`;
  if (tx.depth === 0) return undefined;
  const of = savepoint(tx.depth--);
  return /^(?:COMMIT|END)/i.test(verb) ? `RELEASE SAVEPOINT ${of}` : `ROLLBACK TO SAVEPOINT ${of}; RELEASE SAVEPOINT ${of}`;
}

// guarded is the connection as the handler sees it. It is not the handler's to end, and is of no
// use once the transaction has ended: a late write would be in another caller's transaction, or in none.
function guarded(tx) {
  const refuse = (args, message) => {
    const error = new Error(`stet: ${message}`);
    const last = args.at(-1);
    if (typeof last === 'function') return void process.nextTick(last, error);
    if (typeof args[0]?.submit === 'function') throw error;
    return Promise.reject(error);
  };
  const query = (...args) => {
    const text = typeof args[0] === 'string' ? args[0] : args[0]?.text;
    tx.used = true;
    if (!tx.open) {
      tx.options.log('a handler has used its client after its transaction had ended; nothing was written');
      tx.late ??= new Error('stet: the handler has used its client too late after it had ended the response; nothing was committed');
      return refuse(args, 'this transaction has ended; use its client before the response ends');
    }
    const [, verb] = typeof text === 'string' ? control.exec(text) ?? [] : [];
    if (verb === undefined) return tx.connection.query(...args);
    const instead = nested(tx, verb, text);
    if (instead === undefined) return refuse(args, 'this transaction is not the handler\'s to end: throw an error to have it rolled back; a transaction inside of it is begun and ended by a plain BEGIN, COMMIT or ROLLBACK');
    return tx.connection.query(instead, ...args.slice(1).filter((arg) => typeof arg === 'function'));
  };
  return new Proxy(tx.connection, {
    get(connection, name) {
      if (name === 'query') return query;
      if (name === 'release') return () => {}; // stet releases the connection; query builders that received it do so, too
      if (name === 'end' || name === 'connect') return (...args) => refuse(args, `${name}: the handler must not release this connection`);
      const value = Reflect.get(connection, name, connection);
      return typeof value === 'function' ? value.bind(connection) : value;
    },
  });
}
