import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import pg from 'pg';

if (!process.env.STET_DATABASE) throw new Error('these tests are run by: go test ./clients/js');

const agent = new http.Agent({ keepAlive: false });

/** Sends a request, and returns status, headers (lists of values) and body. */
export async function post(url, { key, body = '{"amount":42}', headers = {}, path = '/payments', account = 'acct_1' } = {}) {
  const req = http.request(url + path, {
    method: 'POST', agent,
    headers: { 'Content-Type': 'application/json', ...(account && { 'X-Account': account }), ...(key && { 'Idempotency-Key': key }), ...headers },
  });
  req.end(body);
  const [res] = await once(req, 'response');
  const chunks = [];
  for await (const chunk of res) chunks.push(chunk);
  const bytes = Buffer.concat(chunks);
  const problem = res.headers['content-type'] === 'application/problem+json' ? JSON.parse(bytes) : undefined;
  return { status: res.statusCode, headers: res.headersDistinct, body: bytes, text: bytes.toString(), problem, type: problem?.type.split('#')[1] };
}

/** A response without the fields of the moment and of a replay. */
export function lasting({ status, headers, body }) {
  const kept = { ...headers };
  for (const name of ['date', 'connection', 'idempotent-replayed', 'idempotency-expires', 'cache-control']) delete kept[name];
  return { status, headers: kept, body };
}

const database = new pg.Pool({ connectionString: process.env.STET_OWNER, max: 2 }); // the services have fewer rights

export async function charges(key) {
  const { rows } = await database.query('SELECT id FROM charges WHERE key = $1', [key]);
  return rows.length;
}

/** How many payments of the programs have an amount. */
export async function payments(amount) {
  const { rows } = await database.query('SELECT FROM payments WHERE amount = $1', [amount]);
  return rows.length;
}

/** Runs a statement as the owner of the database. */
export const asOwner = (text) => database.query(text);

/** Changes the record of a key of acct_1, as time, a crash or a newer version would. */
export async function change(key, what) {
  const { rowCount } = await database.query(`UPDATE stet.records SET ${what} WHERE id = stet.stet_id('acct_1', $1)`, [key]);
  if (rowCount !== 1) throw new Error(`there are ${rowCount} records of ${key}`);
}

/** The stored record of a key of acct_1 for operators, and its retention. */
export async function stored(key) {
  const { rows } = await database.query(`SELECT class, name, ref, date_trunc('minute', expires_at - claimed_at)::text AS kept, (forget_at - settled_at)::text AS refused
    FROM stet.records WHERE id = stet.stet_id('acct_1', $1)`, [key]);
  return rows[0];
}

/** The messages that wait with the record of a key of acct_1. */
export async function outbox(key) {
  const { rows } = await database.query("SELECT convert_from(substr(work, 2), 'UTF8') AS packed FROM stet.records WHERE id = stet.stet_id('acct_1', $1)", [key]);
  return rows[0].packed === null ? [] : JSON.parse(rows[0].packed).Messages;
}

/** The outcomes of a key of acct_1: 0 or 1. */
export async function outcomes(key) {
  const { rows } = await database.query("SELECT FROM stet.records WHERE id = stet.stet_id('acct_1', $1) AND state IN (2, 3)", [key]);
  return rows.length;
}

export const closeDatabase = () => database.end();

/** Starts a service in a process of its own. */
export async function launch(framework, env = {}) {
  const child = fork(fileURLToPath(new URL('service.js', import.meta.url)), [framework], { stdio: 'inherit', env: { ...process.env, ...env } });
  const [{ url }] = await once(child, 'message');
  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  };
  return { url, child, kill };
}

/** Starts stet proxy before a service that settles. more is what the route has besides, in YAML, and besides what the file has. */
export async function sidecar(t, upstream, more = '', besides = '') {
  const dir = await mkdtemp(join(tmpdir(), 'stet-'));
  const config = join(dir, 'stet.yaml');
  await writeFile(config, `upstream: {url: "${upstream}"}\nscope: header:X-Account\nroutes:\n  - {path: /payments, settles: service${more}}\n${besides}`);
  const child = spawn(process.env.STET_PROGRAM, ['proxy', '--config', config, '--store', process.env.STET_OWNER, '--listen', '127.0.0.1:0', '--admin-listen', 'off'],
    { stdio: ['ignore', 'ignore', 'pipe'] });
  const exited = once(child, 'exit');
  t.after(async () => {
    child.kill('SIGKILL');
    await exited;
    await rm(dir, { recursive: true });
  });
  const lines = [];
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      lines.push(line);
      const found = /listening .*(http:\/\/127\.0\.0\.1:\d+)/.exec(line);
      if (found) resolve(found[1]);
    }).on('close', () => reject(new Error(`stet proxy does not listen: ${lines.join('\n')}`)));
  });
  return { url, lines };
}

/** Holds a lock of PostgreSQL's, for which what STET_WAIT names waits. */
export async function hold(number) {
  const client = await database.connect();
  await client.query('SELECT pg_advisory_lock($1)', [number]);
  return async () => {
    await client.query('SELECT pg_advisory_unlock($1)', [number]);
    client.release();
  };
}

/**
 * Stands between a service and PostgreSQL, until it sees the first COMMIT of a connection that has
 * settled something. Then, by way: 'before', the COMMIT never arrives; 'after', it is done and its
 * answer never arrives; 'held', its client is cut off, and the COMMIT arrives once the test has
 * read the record and got "in flight".
 */
export async function proxy(way) {
  const target = new URL(process.env.STET_DATABASE);
  let cut = false;
  let lookedUp;
  const looked = new Promise((resolve) => (lookedUp = resolve));
  const sockets = new Set();
  const server = net.createServer((client) => {
    const upstream = net.connect(target.port, target.hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => sockets.delete(socket));
    }
    let mine = false; // this is the connection that is cut
    let settled = false;
    let asked = false;
    client.on('data', async (data) => {
      if (mine) return;
      settled ||= data.includes('stet_settle') || data.includes('INSERT INTO "stet"."records"');
      if (cut && data.includes('stet_begin')) asked = true;
      if (!settled || cut || !data.includes('COMMIT')) return void upstream.write(data);
      cut = mine = true;
      if (way === 'before') upstream.destroy();
      if (way === 'after') {
        upstream.write(data);
        await once(upstream, 'data');
        upstream.destroy();
      }
      client.destroy();
      if (way === 'held') {
        await looked;
        upstream.end(data);
      }
    });
    upstream.on('data', (data) => {
      if (mine) return;
      client.write(data);
      if (asked && data.includes('in_flight')) lookedUp();
    });
    client.on('close', () => mine || upstream.destroy());
    upstream.on('close', () => client.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = new URL(target);
  url.port = server.address().port;
  return {
    url: url.href, wasCut: () => cut,
    close: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}
