// Statements that node-postgres sends in one trip.

import { sha256 } from './fingerprint.js';

const prepared = new WeakMap(); // by client: the names of its prepared statements; null if it has none

/**
 * Decides, once for each connection, whether statements can be prepared: behind a pooler such as PgBouncer the next
 * transaction may be on another connection of the server, without them. A pooler cannot return that connection's process ID.
 */
export async function prepares(client) {
  if (prepared.has(client)) return;
  const { rows } = await client.query('SELECT pg_catalog.pg_backend_pid()::text AS pid');
  prepared.set(client, rows[0].pid === String(client.processID) ? new Set() : null);
}

const names = new Map(); // of prepared statements, by their texts

// nameOf depends on the text only: another copy of this package may use the same connection.
function nameOf(text) {
  const name = names.get(text) ?? `stet_${sha256(Buffer.from(text)).toString('hex', 0, 8)}`;
  names.set(text, name);
  return name;
}

/**
 * Sends statements, each { text, values }, and returns { rows, tag, completed }: the row of each statement, the last
 * command, and how many have succeeded. With an error of the server the later ones were not executed. values are
 * strings, Buffers and null; each column of a row is text. Those with values are prepared.
 *
 * A Client of pg takes any query that has a method submit, as pg-cursor and pg-query-stream have. pg-native does not,
 * nor does a Client with pipeline: true. There each statement is a trip.
 */
export function send(client, statements, refuse) {
  if (client.pipeline || typeof client.connection?.parse !== 'function') return oneByOne(client, statements, refuse);
  const batch = new Batch(statements, refuse, prepared.get(client));
  client.query(batch);
  return batch;
}

class Batch {
  sent = false;
  rows = [];
  completed = 0;

  /** refuse is called before the statements are sent. If it returns an error, they are not. */
  constructor(statements, refuse, names) {
    this.statements = statements;
    this.refuse = refuse;
    this.names = names;
    this.added = [];
    this.done = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.done.catch(() => {});
  }

  submit(connection) {
    const error = this.refuse?.();
    if (error) return error;
    this.sent = true;
    connection.stream.cork?.();
    for (const { text, values } of this.statements) {
      const statement = values && this.names ? nameOf(text) : '';
      if (!this.names?.has(statement)) {
        if (statement !== '') {
          connection.close({ type: 'S', name: statement }); // of an attempt that failed
          this.added.push(statement);
        }
        connection.parse({ text, name: statement });
      }
      connection.bind({ statement, values: values ?? [] });
      connection.execute({});
    }
    connection.sync();
    connection.stream.uncork?.();
    return null;
  }

  handleDataRow({ fields }) {
    this.rows[this.completed] = fields;
  }

  handleCommandComplete({ text }) {
    this.completed++;
    this.tag = text;
  }

  handleError(error) {
    if (error.code === '26000') this.names?.clear(); // the handler has removed them: DEALLOCATE ALL
    this.callback?.(error); // pg sets it if it has a query_timeout
    this.reject(error);
  }

  handleReadyForQuery() {
    for (const name of this.added) this.names.add(name);
    this.callback?.();
    this.resolve(this);
  }

  handleRowDescription() {}
  handlePortalSuspended() {}
  handleEmptyQuery() {}
}

function oneByOne(client, statements, refuse) {
  const batch = { statements, sent: false, rows: [], completed: 0 };
  const run = async () => {
    const error = refuse?.();
    if (error) throw error;
    batch.sent = true;
    for (const { text, values } of statements) {
      const { rows, command } = await client.query({ text, values, rowMode: 'array' });
      batch.rows.push(rows[0]);
      batch.completed++;
      batch.tag = command;
    }
    return batch;
  };
  batch.done = run();
  batch.done.catch(() => {});
  return batch;
}
