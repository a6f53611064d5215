// A service that receives payments: WAY is express_pg_WAY. It prints its address.

import { createHash } from 'node:crypto';
import express from 'express';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/express';

const { DATABASE_URL, REDIS_URL, WAY } = process.env;
const kind = WAY.split('_')[2];
const texts = JSON.parse(process.env.TEXTS);
const statement = (name) => ({ name, text: texts[name].replaceAll('{t}', WAY) });
const [insert, reserve, stored, store] = ['insert', 'reserve', 'stored', 'store'].map(statement);
const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 16 });
const app = express();

const one = async (client, query, ...values) => (await client.query({ ...query, values })).rows[0];

async function pay(client, req) {
  const { id } = await one(client, insert, req.get('Idempotency-Key'));
  return { payment: id, amount: req.body.amount };
}

async function inTransaction(fn) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const result = await fn(client);
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  } finally {
    client.release();
  }
}

const bare = async (req, res) => {
  res.status(201).json(await inTransaction((client) => pay(client, req)));
};

if (kind === 'stet' || kind === 'statements') {
  const once = idempotency({ pool, scope: (req) => req.get('X-Account'), ...(kind === 'statements' && { mode: 'statements' }) });
  app.post('/payments', once(async (req, res, client) => {
    res.status(201).json(await pay(client, req));
  }));
} else if (kind === 'hand') {
  app.use(express.json({ verify: (req, _, bytes) => { req.rawBody = bytes; } }));
  app.post('/payments', async (req, res) => {
    const key = req.get('Idempotency-Key');
    const hash = createHash('sha256');
    for (const part of ['POST', req.originalUrl, req.get('Content-Type'), req.rawBody]) {
      const length = Buffer.alloc(8);
      length.writeBigUInt64BE(BigInt(Buffer.byteLength(part)));
      hash.update(length).update(part);
    }
    const fingerprint = hash.digest();
    const row = await inTransaction(async (client) => {
      if ((await one(client, reserve, key, fingerprint)) === undefined) return await one(client, stored, key);
      const body = Buffer.from(JSON.stringify(await pay(client, req)));
      await client.query({ ...store, values: [body, key] });
      return { fingerprint, status: 201, content_type: 'application/json', body };
    });
    if (!row.fingerprint.equals(fingerprint)) return void res.sendStatus(422);
    res.status(row.status).type(row.content_type).send(row.body);
  });
} else if (kind === 'library') {
  const library = (await import('express-idempotency')).default;
  const { default: RedisAdapter } = (await import('express-idempotency-redis-adapter')).default;
  const adapter = new RedisAdapter({ connectionConfig: { url: REDIS_URL } });
  await adapter.connect();
  app.use(express.json());
  app.use(library.idempotency({ dataAdapter: adapter }));
  app.post('/payments', async (req, res) => {
    if (!library.getSharedIdempotencyService().isHit(req)) await bare(req, res);
  });
} else {
  app.use(express.json());
  app.post('/payments', bare);
}

const server = app.listen(0, '127.0.0.1', () => console.log(`ready 127.0.0.1:${server.address().port}`));
