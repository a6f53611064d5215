// Measures transactions of node-postgres: bare, with the functions of stet, and with an idempotency table by hand.

import { createHash, randomUUID } from 'node:crypto';
import pg from 'pg';

const { DATABASE_URL, EACH, ROUNDS } = process.env;
const insert = (table) => `INSERT INTO ledger_${table} (key) VALUES ($1) RETURNING id`;
const begin = "SELECT action, claim, status, headers, content_type, body FROM stet.stet_begin('acct_1', $1, $2, name => 'POST /payments')";
const settle = "SELECT stet.stet_settle($1, 201, '{}', 'application/json', $2)";
const reserve = "INSERT INTO idempotency (scope, key, fingerprint) VALUES ('acct_1', $1, $2) ON CONFLICT DO NOTHING RETURNING true";
const stored = "SELECT fingerprint, status, content_type, body FROM idempotency WHERE scope = 'acct_1' AND key = $1 FOR UPDATE";
const store = "UPDATE idempotency SET status = 201, content_type = 'application/json', body = $1 WHERE scope = 'acct_1' AND key = $2";

function fingerprint(key) {
  const digest = createHash('sha256').update('\x01');
  for (const part of ['POST', '/payments', 'application/json', '', key]) {
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(Buffer.byteLength(part)));
    digest.update(length).update(part);
  }
  return Buffer.concat([Buffer.from([1]), digest.digest()]);
}

const one = async (client, text, ...values) => (await client.query(text, values)).rows[0];

const ways = {
  async bare(client, key) {
    await client.query('BEGIN');
    const { id } = await one(client, insert('bare'), key);
    await client.query('COMMIT');
    return Buffer.from(`{"payment": ${id}}`);
  },
  async stet(client, key) {
    await client.query('BEGIN');
    const begun = await one(client, begin, key, fingerprint(key));
    if (begun.action === 'replay') {
      await client.query('ROLLBACK');
      return begun.body;
    }
    const { id } = await one(client, insert('stet'), key);
    const body = Buffer.from(`{"payment": ${id}}`);
    await client.query(settle, [begun.claim, body]);
    await client.query('COMMIT');
    return body;
  },
  async hand(client, key) {
    await client.query('BEGIN');
    if ((await one(client, reserve, key, fingerprint(key))) === undefined) {
      const row = await one(client, stored, key);
      await client.query('ROLLBACK');
      if (!row.fingerprint.equals(fingerprint(key))) throw new Error('a mismatch');
      return row.body;
    }
    const { id } = await one(client, insert('hand'), key);
    const body = Buffer.from(`{"payment": ${id}}`);
    await client.query(store, [body, key]);
    await client.query('COMMIT');
    return body;
  },
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

function median(all) {
  const sorted = all.toSorted((a, b) => a - b);
  return (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.floor(sorted.length / 2)]) / 2;
}

function report(callers, rates) {
  for (const [name, all] of Object.entries(rates)) console.log(`figure: bench_sql_pg_${callers}_${name} = ${median(all).toFixed(0)} transactions/s`);
  for (const [name, of, to] of [['vs_bare', 'stet', 'bare'], ['hand_vs_bare', 'hand', 'bare'], ['vs_hand', 'stet', 'hand'], ['replay_vs_hand', 'stet_replay', 'hand_replay']]) {
    console.log(`figure: bench_sql_pg_${callers}_${name} = ${median(rates[of].map((rate, i) => rate / rates[to][i])).toFixed(2)} ratio`);
  }
}

const total = { bare: 0, stet: 0, hand: 0 };
for (const callers of [1, 16]) {
  const clients = await Promise.all(Array.from({ length: callers }, async () => {
    const client = new pg.Client({ connectionString: DATABASE_URL });
    await client.connect();
    return client;
  }));
  const rates = { bare: [], stet: [], hand: [], stet_replay: [], hand_replay: [] };
  const known = { stet: [], hand: [] };
  for (const name of Object.keys(known)) {
    for (let i = 0; i < 200; i++) {
      const key = randomUUID();
      known[name].push([key, await ways[name](clients[0], key)]);
      total[name]++;
    }
  }
  for (let round = 0; round < Number(ROUNDS); round++) {
    for (const name of Object.keys(ways)) {
      const [rate, n] = await measure(ways[name], clients, () => [randomUUID()]);
      rates[name].push(rate);
      total[name] += n;
    }
    for (const name of Object.keys(known)) {
      let turn = 0;
      const [rate] = await measure(ways[name], clients, () => known[name][turn++ % 200]);
      rates[`${name}_replay`].push(rate);
    }
  }
  report(callers, rates);
  if (callers === 16) {
    for (const [name, n] of Object.entries(total)) console.log(`rows: ${name} ${(await one(clients[0], `SELECT count(*) FROM ledger_${name}`)).count} ${n}`);
  }
  await Promise.all(clients.map((client) => client.end()));
}
