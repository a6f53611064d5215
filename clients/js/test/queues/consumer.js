// A consumer as a process: the first job or message is charged, reported, and waits to be killed if STET_HANG is set.

import pg from 'pg';
import { PermanentError } from '@stet-go/stet';
import { connection, kafka } from './servers.js';

const [kind, name] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });

async function charge(order, client) {
  await client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [order]);
  process.send?.('charged');
  if (process.env.STET_HANG) await new Promise(() => setInterval(() => {}, 1000));
  if (order.startsWith('refused')) throw new PermanentError('sold out');
  return { order };
}

if (kind === 'bullmq') {
  const [{ Worker }, { idempotency }] = await Promise.all([import('bullmq'), import('@stet-go/stet/bullmq')]);
  const once = idempotency({ pool, key: (job) => job.data.order });
  new Worker(name, once((job, client) => charge(job.data.order, client)), { connection, lockDuration: 1000, stalledInterval: 500, maxStalledCount: 5 });
} else {
  const { idempotency } = await import('@stet-go/stet/kafka');
  const once = idempotency({ pool, scope: name, key: ({ message }) => String(message.key), failed: (error) => process.send({ failed: error.message }) });
  const consumer = kafka.consumer({ groupId: name, sessionTimeout: 6000, heartbeatInterval: 500, rebalanceTimeout: 3000 });
  await consumer.connect();
  await consumer.subscribe({ topic: name, fromBeginning: true });
  await consumer.run({ autoCommitThreshold: 1, eachMessage: once(({ message }, client) => charge(String(message.key), client)) });
}
process.on('disconnect', () => process.exit());
