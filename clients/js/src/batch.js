// Statements that node-postgres sends in one trip.

/**
 * Sends statements, each { text, values }, and returns { rows, tag, completed }: the row of each statement, the last
 * command, and how many have succeeded. With an error of the server the later ones were not executed. values are
 * strings, Buffers and null; each column of a row is text.
 *
 * A Client of pg takes any query that has a method submit, as pg-cursor and pg-query-stream have. pg-native does not,
 * nor does a Client with pipeline: true. There each statement is a trip.
 */
export function send(client, statements, refuse) {
  if (client.pipeline || typeof client.connection?.parse !== 'function') return oneByOne(client, statements, refuse);
  const batch = new Batch(statements, refuse);
  client.query(batch);
  return batch;
}

class Batch {
  sent = false;
  rows = [];
  completed = 0;

  /** refuse is called before the statements are sent. If it returns an error, they are not. */
  constructor(statements, refuse) {
    this.statements = statements;
    this.refuse = refuse;
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
    for (const { text, values = [] } of this.statements) {
      connection.parse({ text });
      connection.bind({ values });
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
    this.callback?.(error); // pg sets it if it has a query_timeout
    this.reject(error);
  }

  handleReadyForQuery() {
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
