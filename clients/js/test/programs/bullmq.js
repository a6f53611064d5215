import { Worker } from 'bullmq';
import IORedis from 'ioredis';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/bullmq';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const once = idempotency({ pool, key: (job) => job.data.order });

new Worker('orders', once(async (job, client) => {
  const { rows } = await client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [job.data.amount]);
  return { payment: rows[0].id };
}), { connection: new IORedis(process.env.REDIS_URL, { maxRetriesPerRequest: null }) });
