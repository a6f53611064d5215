// One transaction of node-postgres, with the business writes and the outcome.

import { setTimeout as sleep } from 'node:timers/promises';
import { prepares, send } from './batch.js';
import { lets } from './emit.js';
import { advice, code, described, explained, kind, refused, wiring } from './errors.js';
import { guarded } from './handlerclient.js';
import { problem } from './problem.js';
import { httpDate } from './response.js';
import { claimParts, claimText, fieldsOf, identity, newOwner, outcomeOf, waitLock } from './record.js';

const commitTimeout = 10_000; // for the answer to COMMIT, and again for reading the record

/**
 * Begins a transaction, and asks what to do with an operation. With the action run the transaction
 * is open and is tx; with any other it has ended. An operation that the sidecar has claimed runs.
 */
export async function begin(options, operation, mode = options.mode) {
  const pool = operation.pool ?? options.pool;
  const tx = new Transaction(options, operation, await pool.connect(), pool);
  try {
    if (pool.single && await occupied(tx.connection)) {
      tx.release(false);
      throw wiring(occupiedText);
    }
    tx.retention = await retention(options, tx.connection);
    await prepares(tx.connection);
    const row = await (operation.claim !== undefined ? tx.number() : tx.named(mode));
    if (row.action !== 'run') tx.rollback(); // the response does not wait for it
    else tx.watch();
    if (tx.warned) throw wiring(occupiedText);
    return { ...row, tx };
  } catch (error) {
    tx.abandon();
    throw error;
  }
}

const occupiedText = 'the client has a transaction open; give operation a client without one, or the Pool';

// occupied reports whether a Client has a transaction open. The warning of BEGIN does not come at each client_min_messages.
async function occupied(connection) {
  let state;
  const ready = ({ status }) => { state = status; };
  connection.connection?.on?.('readyForQuery', ready);
  await connection.query('SELECT').finally(() => connection.connection?.off?.('readyForQuery', ready));
  return state === 'T' || state === 'E';
}

const retentions = new WeakMap();

// retention is how long the result and its tombstone are stored, in seconds. PostgreSQL reads the intervals, once.
async function retention(options, connection) {
  const known = retentions.get(options);
  if (known !== undefined) return known;
  const { rows } = await connection.query("SELECT extract(epoch FROM $1::interval)::text AS result, extract(epoch FROM $2::interval)::text AS tombstone",
    [options.keep, options.tombstone]);
  const result = Number(rows[0].result);
  const tombstone = rows[0].tombstone === null ? Math.max(result, 30 * 86400) : Number(rows[0].tombstone);
  if (!(result > 0 && tombstone >= result && tombstone <= 3155760000)) {
    throw wiring(`keep is ${options.keep} and tombstone ${options.tombstone}; keep must be positive, and tombstone not shorter and at most 100 years`);
  }
  retentions.set(options, { result, tombstone });
  return { result, tombstone };
}

const definite = new Set(['replay', 'expired', 'mismatch']);
const beginning = { text: 'BEGIN ISOLATION LEVEL READ COMMITTED' };

class Transaction {
  open = true;
  used = false; // by the handler
  committed = false;
  finished = false; // by a statement of the handler's
  emitted = false;
  writing; // a promise
  direct = false; // there is no row yet: only this package keeps the transaction from being committed
  single = false; // a text has one statement: a savepoint that is rolled back may remove a row of write
  depth = 0; // of savepoints that stand for transactions of the handler's

  constructor(options, operation, connection, pool) {
    this.pool = pool;
    this.options = options;
    this.operation = operation;
    this.connection = connection;
    this.broken = () => {}; // without a listener pg throws the error
    connection.on('error', this.broken);
    this.notice = ({ code: warning }) => { if (warning === '25001') this.warned = true; }; // BEGIN in a transaction
    connection.on('notice', this.notice);
    this.client = guarded(this);
    lets(this.client, (message) => this.emit(message));
  }

  // number has PostgreSQL say which transaction this is. It has no row of stet_begin, without whose
  // outcome nothing could be committed. Therefore only this transaction can settle.
  async number() {
    const { rows } = await send(this.connection, [beginning, { text: 'SELECT pg_catalog.txid_current()::text' }]).done;
    this.claim = claimParts(this.operation.claim);
    [this.xid] = rows[1];
    return { action: 'run' };
  }

  // named begins the operation under the name of a new one. While the namespace changes, it runs only if the other name has no record, and no
  // transaction holds its lock. Each transaction locks its own name before it tries the other one. Therefore at most one runs.
  async named(mode) {
    const { options, operation, connection } = this;
    const row = await (mode === 'statements' ? this.look() : this.ask());
    if (options.previous === undefined || definite.has(row.action)) return row;
    const other = (operation.other ??= identity(options, operation, options.namespaces[1]));
    const { rows: [, there] } = await send(connection, [{ text: 'SAVEPOINT stet_names' }, this.beginning(other, newOwner()),
      { text: 'ROLLBACK TO SAVEPOINT stet_names' }, { text: 'RELEASE SAVEPOINT stet_names' }]).done; // the row and the lock of a free name
    if (there[0] === 'run' || row.action !== 'run' && !definite.has(there[0])) return row;
    this.xid = undefined;
    operation.found = other;
    return this.begun(there);
  }

  // beginning is the statement that calls stet_begin_raw.
  beginning({ id, scope, fingerprint, run, printLock, print }, owner) {
    const { options, operation } = this;
    return { text: options.sql.begin,
      values: [id, scope, fingerprint, owner, run, printLock, print, options.class, operation.name, operation.ref, String(this.retention.result)] };
  }

  // ask calls stet_begin_raw, after the statements before it.
  async ask(before = [beginning]) {
    const { options, operation } = this;
    const name = (operation.identity ??= identity(options, operation, options.namespaces[0]));
    const owner = newOwner();
    const { rows } = await send(this.connection, [...before, this.beginning(name, owner)]).done;
    const [action, fence] = rows.at(-1);
    if (action === 'run') this.claim = { id: name.id, owner, fence };
    return this.begun(rows.at(-1));
  }

  // look begins without a row. Only if there is a record without an outcome, or another transaction has the lock, it asks.
  async look() {
    const { options, operation, connection } = this;
    if (typeof connection.connection?.parse !== 'function') throw wiring('the mode statements needs the JavaScript client of pg, not pg-native');
    const { id, fingerprint, run, printLock, print } = (operation.identity ??= identity(options, operation, options.namespaces[0]));
    const { rows: [, row] } = await send(connection, [beginning, { text: options.sql.look, values: [id, run, printLock, print, fingerprint] }]).done;
    if (row[0] === null) return this.ask([]);
    const [, fence, xid] = /^(\d+) (\d+)$/.exec(row[0]) ?? [];
    if (xid === undefined) return this.begun(row);
    this.direct = this.single = true;
    this.xid = xid;
    this.claim = { id, owner: newOwner(), fence };
    return this.begun(['run', fence, ...row.slice(2)]);
  }

  // begun is a row of stet_begin_raw.
  async begun([action, fence, state, status, contentType, stored, body, now, forget]) {
    this.fence = fence;
    this.claimedAt = Number(now);
    if (action !== 'replay') return { action, fence, state };
    const row = { action, fence, state, status: Number(status ?? 0), contentType, headers: {}, body: Buffer.from(body ?? '', 'hex'), expires: httpDate(Number(forget ?? NaN)) };
    const known = fieldsOf(stored);
    if (known !== undefined) {
      row.headers = known;
    } else {
      const { rows } = await this.connection.query({ text: this.options.sql.head, values: [Buffer.from(stored, 'hex')], rowMode: 'array' });
      row.headers = JSON.parse(rows[0][0]);
      row.contentType ??= rows[0][1];
    }
    return row;
  }

  async emit(message) {
    try {
      if (this.direct && this.open) await (this.writing ??= this.write());
      this.emitted = true;
      const { rows } = await this.client.query(this.options.sql.emit, [claimText(this.claim), ...message]);
      return rows[0].id;
    } catch (error) {
      const todo = advice(this.options, error, ['emit', 'settle']);
      if (todo !== '') this.options.log(`a message could not be emitted, and nothing is committed${todo}`, described(error));
      throw error;
    }
  }

  // write writes the row that stet_emit needs. PostgreSQL then refuses to commit without an outcome.
  async write() {
    const { action } = await this.ask([]);
    if (action !== 'run') throw new Error(`stet: the operation cannot be begun in its own transaction: ${action}`);
    this.direct = false;
  }

  // watch closes the client once the server says that there is no transaction: "SELECT 1; ROLLBACK"
  // has ended it, and each later statement would be committed by itself.
  watch() {
    const wire = this.connection.connection;
    const ready = ({ status }) => { if (status === 'I' && this.open) [this.open, this.finished] = [false, true]; };
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
    connection.off('notice', this.notice);
    if (!destroy) connection.off('error', this.broken);
    if (!this.pool.single) return connection.release(destroy);
    if (destroy) connection.end().catch(() => {}); // it is the caller's
    this.pool.release();
  }

  /** Ends the connection, and with it the transaction, as soon as the server notices. */
  abandon() {
    this.release(true);
  }

  /** Waits for the handler's running statements and rolls back. */
  async rollback() {
    this.open = false;
    if (this.connection === undefined) return;
    if (this.xid !== undefined) return this.ended().catch(() => {});
    const done = await within(commitTimeout, this.connection.query('ROLLBACK')).then(() => true, () => false);
    this.release(!done);
  }

  /** Until when a retry does not run again, as a date of HTTP; undefined behind the sidecar, which says it. */
  get expires() {
    return httpDate(this.claimedAt + this.retention.tombstone);
  }

  // settlement is the statement that stores an outcome.
  settlement({ status, headers, contentType, head, body, gone, failed: fails }) {
    if (Buffer.byteLength(contentType ?? '') > 255) throw wiring('the content type has more than 255 bytes');
    const { options: { sql, maxResult, class: kind }, claim: { id, owner, fence }, retention: { result, tombstone }, operation, xid } = this;
    const failed = String(fails ?? status >= 500), times = [String(result), String(tombstone)];
    const number = status && String(status), bytes = gone ? null : body, type = contentType || null;
    const guard = xid === undefined ? [] : [xid];
    if (this.emitted) {
      return { text: xid === undefined ? sql.settleMessages : sql.settleMessagesIn,
        values: [claimText(this.claim), number, JSON.stringify(headers), type, bytes, failed, String(gone), ...times, String(maxResult), ...guard] };
    }
    if (!this.direct) {
      return { text: xid === undefined ? sql.settle : sql.settleIn,
        values: [id, owner, fence, operation.identity?.wait ?? waitLock(this.options, id), number, type, head, bytes, failed, String(gone), ...times, ...guard] };
    }
    const { scope, fingerprint, wait } = operation.identity;
    return { text: sql.finish, values: [id, scope, fingerprint, owner, kind, operation.name, operation.ref, fence, xid,
      failed, String(gone), number, type, head, bytes, ...times, wait] };
  }

  /**
   * Settles and commits. It returns { action: 'committed' } if that succeeded. If COMMIT was not acknowledged, it returns
   * the row of begin for another outcome, the action 'nothing' if there is none, or 'unknown' if that could not be
   * read or the sidecar must read it. Before COMMIT was sent, it throws.
   */
  async commit(outcome) {
    this.open = false;
    if (this.xid !== undefined && this.finished) return this.ended();
    let batch;
    try {
      // A statement that the handler has left running, or what follows it, may still fail.
      if (this.connection.readyForQuery === false) await within(commitTimeout, this.connection.query('SELECT'));
      batch = send(this.connection, [this.settlement(outcome), { text: 'COMMIT' }], () => this.late);
      await within(commitTimeout, batch.done);
    } catch (error) {
      return this.uncommitted(batch, error);
    }
    this.release(false);
    this.committed = batch.tag === 'COMMIT';
    if (!this.committed) throw new Error('stet: the transaction was rolled back by something else than stet');
    return { action: 'committed' };
  }

  // uncommitted determines what an error of settling or of COMMIT means.
  async uncommitted(batch, error) {
    if (!batch?.sent) { // nor will it be
      if (batch !== undefined) batch.refuse = () => error;
      if (batch === undefined || error === this.late) await this.rollback();
      this.abandon();
      throw error;
    }
    if (batch.completed > 0 || code(error) === '') return this.unacknowledged(error);
    if (this.xid !== undefined && code(error) === '22012') return this.ended();
    await this.rollback();
    if (this.direct && code(error) === '23505' && error.table === this.options.table) return this.lookUp(); // another transaction has committed first
    const todo = advice(this.options, error, [this.emitted ? 'settle' : 'settle_raw']);
    if (todo !== '') this.options.log(`an outcome could not be stored; it was rolled back${todo}`, described(error));
    throw explained(this.options, error);
  }

  async unacknowledged(error) {
    this.abandon();
    if (refused(error)) throw explained(this.options, error);
    if (this.operation.claim === undefined && !this.pool.single) return this.lookUp();
    this.options.log(`a COMMIT was not acknowledged; ${this.operation.claim === undefined ? 'a retry reads its outcome' : 'the sidecar determines its outcome'}`, described(error));
    return { action: 'unknown' };
  }

  /**
   * Settles if the handler has ended the transaction itself. Without a row of begin, PostgreSQL cannot refuse
   * its COMMIT. If it has committed, a failure is stored, so that a retry does not run again. It always throws.
   */
  async ended() {
    const { options, connection, xid } = this;
    try {
      await within(commitTimeout, connection.query('ROLLBACK')); // if a transaction is open
      const { rows } = await within(commitTimeout, connection.query('SELECT pg_catalog.txid_status($1::bigint) AS ended', [xid]));
      if (rows[0].ended === 'committed') {
        this.late = new Error('stet: the handler has committed its transaction: its writes are committed, and a retry receives a failure so that it does not run again');
        options.log(this.late.message);
        await this.storeFailure();
      }
      this.late ??= new Error('stet: the handler has rolled back its transaction; nothing was settled, and a retry runs again');
    } catch (error) {
      this.abandon();
      throw error;
    }
    this.release(false);
    throw this.late;
  }

  // storeFailure settles, in a transaction of its own, an operation that the handler has committed. Without the sidecar it
  // begins again, on a connection of a pool that may have no other.
  async storeFailure() {
    const { headers: { 'Content-Type': contentType, ...fields }, ...response } = problem('not-settled', { base: this.options.problemBase });
    const headers = Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, [value]]));
    const failure = outcomeOf({ ...response, headers, contentType }, Infinity);
    this.xid = undefined;
    if (this.operation.claim !== undefined) return within(commitTimeout, send(this.connection, [this.settlement(failure)]).done);
    this.release(false);
    const { action, tx } = await begin(this.options, this.operation, 'functions');
    if (action === 'run') await tx.commit(failure);
  }

  /** Reads, on another connection, the outcome of an unacknowledged COMMIT. The old
   * transaction holds its key until it has ended. "run" therefore proves that nothing was committed. */
  async lookUp() {
    const until = Date.now() + commitTimeout;
    for (let pause = 25; ; pause = Math.min(2 * pause, 500)) {
      const begun = begin(this.options, this.operation, 'functions'); // look() reads before it locks
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
