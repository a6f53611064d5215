// The payment of every service in Node: what a request asks for, and the ledger of executions.

import pg from 'pg';

export const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const runs = new pg.Pool({ connectionString: process.env.DATABASE_URL }); // a handler in a transaction takes a second connection, which must not be of the same pool
for (const one of [pool, runs]) one.on('error', () => {}); // a server that is restarted
export const lease = Number(process.env.LEASE);

const commit = async (sql, values) => (await pool.query(sql, values)).rows[0];

/** Returns status, headers and body. execute runs the business write, by default as a commit of its own. */
export async function pay(key, account, { do: what = '', seconds = 0 }, execute = commit) {
  await runs.query('INSERT INTO runs (key, account) VALUES ($1, $2)', [key, account]);
  const first = (await runs.query('SELECT count(*) AS n FROM runs WHERE key = $1', [key])).rows[0].n === '1';
  if (first && what === 'die before') process.kill(process.pid, 'SIGKILL');
  if (first && what === 'fail before') throw new Error('unlucky');
  if (what === 'decline') return { status: 402, headers: {}, body: { declined: String(process.hrtime.bigint()) } };
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const { id } = await execute('INSERT INTO effects (key, account) VALUES ($1, $2) RETURNING id', [key, account]);
  if (first && what === 'die after') process.kill(process.pid, 'SIGKILL');
  if (first && what === 'fail after') throw new Error('unlucky');
  return answer(what, Number(id));
}

function answer(what, id) {
  switch (what) {
    case 'nothing': return { status: 204, headers: {} };
    case 'bytes': return { status: 201, headers: { 'Content-Type': 'application/octet-stream' }, body: Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, i) => i)), Buffer.from(String(id))]) };
    case 'text': return { status: 201, headers: { 'Content-Type': 'text/plain; charset=utf-8' }, body: `bezahlt: ${id} €` };
    case 'large': return { status: 201, headers: {}, body: { payment: id, note: 'x'.repeat(700_000) } };
    case 'headers': return { status: 201, headers: { Location: `/payments/${id}`, 'X-Receipt': `r-${id}` }, body: { payment: id } };
    default: return { status: 201, headers: {}, body: { payment: id } };
  }
}

/** Sends it by Express. */
export function send(res, { status, headers, body }) {
  res.status(status).set(headers);
  return body === undefined ? res.end() : res.send(body);
}
