// Measures transactions of node-postgres: bare, with idempotency tables by hand, and with stet.

import { createHash, randomBytes, randomUUID } from 'node:crypto';
import pg from 'pg';

const { DATABASE_URL, EACH, ROUNDS, TEXTS } = process.env;
const { statements, ways } = JSON.parse(TEXTS);

// Prepared statements, which the server plans once for each connection.
function statement(name, way = '') {
  const text = statements[name].replaceAll('{t}', way);
  return { name: createHash('sha256').update(text).digest('hex').slice(0, 32), text };
}

function digest(...parts) {
  const hash = createHash('sha256');
  for (const part of parts) {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(Buffer.byteLength(part));
    hash.update(length).update(part);
  }
  return hash.digest();
}

function fingerprint(key) {
  const hash = createHash('sha256').update('\x01');
  for (const part of ['POST', '/payments', 'application/json', '', key]) {
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(Buffer.byteLength(part)));
    hash.update(length).update(part);
  }
  return Buffer.concat([Buffer.from([1]), hash.digest()]);
}

const scope = digest('stet scope 1', '', 'acct_1');
const wait = digest('wait', 'stet', 'records').readBigUInt64BE();

// identity is the ID of a key, and the numbers of its locks.
function identity(key, print) {
  const id = Buffer.concat([scope.subarray(0, 8), digest('stet id 2', '', 'acct_1', key).subarray(0, 24)]);
  return [id, digest('run', 'stet', 'records', id).readBigInt64BE().toString(), digest('finger', 'stet', 'records', id).readInt32BE(4), digest(print).readInt32BE(4)];
}

const waitLock = (id) => BigInt.asIntN(64, id.readBigUInt64BE(8) ^ wait).toString();

const one = async (client, query, ...values) => (await client.query({ ...query, values })).rows[0];
const insert = Object.fromEntries(ways.map((way) => [way, statement('insert', way)]));

async function pay(client, way, key) {
  const { id } = await one(client, insert[way], key);
  return Buffer.from(`{"payment": ${id}}`);
}

// transaction runs begin, which returns the body of a replay, or a function that stores the response.
const transaction = (way, begin) => async (client, key) => {
  await client.query('BEGIN');
  const begun = await begin(client, key);
  if (Buffer.isBuffer(begun)) {
    await client.query('ROLLBACK');
    return begun;
  }
  const body = await pay(client, way, key);
  await begun(body);
  await client.query('COMMIT');
  return body;
};

function byHand(way, locks) {
  const [reserve, stored, store, locked, key1] = ['reserve', 'stored', 'store', 'locked', 'key'].map((name) => statement(name, way));
  return transaction(way, async (client, key) => {
    let row;
    if (locks) {
      row = await one(client, locked, key);
      if (row === undefined) await one(client, key1, key, fingerprint(key));
    } else if ((await one(client, reserve, key, fingerprint(key))) === undefined) {
      row = await one(client, stored, key);
    }
    if (row === undefined) return (body) => one(client, store, body, key);
    if (!row.fingerprint.equals(fingerprint(key))) throw new Error('a mismatch');
    return row.body;
  });
}

const [beginRaw, settleRaw, begin, settle, enter, finish] = ['begin_raw', 'settle_raw', 'begin', 'settle', 'enter', 'finish'].map((name) => statement(name));

const run = {
  bare: transaction('bare', async () => async () => {}),
  hand: byHand('hand', false),
  hand2: byHand('hand2', true),
  raw: transaction('raw', async (client, key) => {
    const print = fingerprint(key);
    const [id, ...locks] = identity(key, print);
    const owner = randomBytes(16);
    const row = await one(client, beginRaw, id, scope, print, owner, ...locks);
    if (row.action === 'replay') return row.body;
    return (body) => one(client, settleRaw, id, owner, row.fence, waitLock(id), body);
  }),
  psql: transaction('psql', async (client, key) => {
    const row = await one(client, begin, key, fingerprint(key));
    if (row.action === 'replay') return row.body;
    return (body) => one(client, settle, row.claim, body);
  }),
  statements: transaction('statements', async (client, key) => {
    const print = fingerprint(key);
    const [id, ...locks] = identity(key, print);
    const row = await one(client, enter, ...locks, id);
    if (row.state === null) return (body) => one(client, finish, id, scope, print, randomBytes(16), row.fence, body, waitLock(id));
    if (!row.fingerprint.equals(print) || row.state !== 2) throw new Error('a mismatch');
    return row.body;
  }),
};

// measure returns transactions per second, and how many there were. keys makes new keys, or returns known ones.
async function measure(way, clients, keys) {
  let done = 0;
  const began = performance.now();
  const end = began + 1000 * Number(EACH);
  await Promise.all(clients.map(async (client) => {
    while (performance.now() < end) {
      const [key, want] = keys();
      const got = await way(client, key);
      if (want !== undefined && !got.equals(want)) throw new Error(`a replay is ${got}, and was ${want}`);
      done++;
    }
  }));
  return [done / (performance.now() - began) * 1000, done];
}

const total = Object.fromEntries(ways.map((way) => [way, 0]));
for (const callers of [1, 16]) {
  const clients = await Promise.all(Array.from({ length: callers }, async () => {
    const client = new pg.Client({ connectionString: DATABASE_URL });
    await client.connect();
    return client;
  }));
  const rates = {};
  const known = {};
  for (const way of ways.slice(1)) {
    known[way] = [];
    for (let i = 0; i < 200; i++) {
      const key = randomUUID();
      known[way].push([key, await run[way](clients[0], key)]);
    }
    total[way] += 200;
  }
  for (let round = 0; round <= Number(ROUNDS); round++) { // the first does not count
    for (const way of ways) {
      const [rate, n] = await measure(run[way], clients, () => [randomUUID()]);
      total[way] += n;
      if (round > 0) (rates[way] ??= []).push(rate);
    }
    for (const way of ways.slice(1)) {
      let turn = 0;
      const [rate] = await measure(run[way], clients, () => known[way][turn++ % 200]);
      if (round > 0) (rates[`${way}_replay`] ??= []).push(rate);
    }
  }
  console.log(JSON.stringify({ Prefix: `bench_sql_pg_${callers}_`, Rates: rates, Done: total }));
  await Promise.all(clients.map((client) => client.end()));
}
