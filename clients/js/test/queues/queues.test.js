// BullMQ on Redis and kafkajs: consumers that are killed between their write and its commit, and jobs and messages that are delivered twice.

import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Queue, QueueEvents } from 'bullmq';
import { charges, closeDatabase, payments } from '../support.js';
import { connection, kafka } from './servers.js';

after(closeDatabase);

function consumer(t, kind, name, env = {}) {
  const child = fork(fileURLToPath(new URL('consumer.js', import.meta.url)), [kind, name], { stdio: 'inherit', env: { ...process.env, ...env } });
  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  };
  t.after(kill);
  return { child, kill };
}

async function until(condition) {
  for (let n = 0; n < 600; n++, await sleep(50)) if (await condition()) return;
  assert.fail('it did not happen within 30 seconds');
}

test('BullMQ: a job of a worker that is killed before the commit charges once, and so does a second job with its key', { timeout: 90_000 }, async (t) => {
  const name = `orders-${randomUUID()}`, order = randomUUID();
  const queue = new Queue(name, { connection }), events = new QueueEvents(name, { connection });
  t.after(() => Promise.all([queue.close(), events.close()]));
  await events.waitUntilReady();
  const first = consumer(t, 'bullmq', name, { STET_HANG: '1' });
  const job = await queue.add('charge', { order });
  await once(first.child, 'message');
  await first.kill();
  consumer(t, 'bullmq', name);
  assert.deepEqual(await job.waitUntilFinished(events, 60_000), { order });
  assert.equal(await charges(order), 1);
  const again = await queue.add('charge', { order });
  assert.deepEqual(await again.waitUntilFinished(events, 60_000), { order });
  assert.equal(await charges(order), 1);
});

test('BullMQ: a permanent error and another payload fail the job at once, and nothing is charged', { timeout: 90_000 }, async (t) => {
  const name = `orders-${randomUUID()}`, order = `refused-${randomUUID()}`;
  const queue = new Queue(name, { connection }), events = new QueueEvents(name, { connection });
  t.after(() => Promise.all([queue.close(), events.close()]));
  await events.waitUntilReady();
  consumer(t, 'bullmq', name);
  for (const [data, message] of [[{ order }, /sold out/], [{ order }, /sold out/], [{ order, amount: 2 }, /differs/]]) {
    const job = await queue.add('charge', data, { attempts: 3 });
    await assert.rejects(job.waitUntilFinished(events, 60_000), message);
    assert.equal((await queue.getJob(job.id)).attemptsMade, 1);
  }
  assert.equal(await charges(order), 0);
});

test('Kafka: a message of a consumer that is killed before the commit charges once, and so does a copy of it', { timeout: 120_000 }, async (t) => {
  const name = `orders-${randomUUID()}`, order = randomUUID(), other = randomUUID(), refused = `refused-${randomUUID()}`;
  const admin = kafka.admin(), producer = kafka.producer();
  await Promise.all([admin.connect(), producer.connect()]);
  t.after(() => Promise.all([admin.disconnect(), producer.disconnect()]));
  await admin.createTopics({ topics: [{ topic: name, numPartitions: 1, replicationFactor: 1 }], waitForLeaders: true });
  const send = (key) => producer.send({ topic: name, messages: [{ key, value: `{"order":"${key}"}` }] });
  await send(order);
  const first = consumer(t, 'kafka', name, { STET_HANG: '1' });
  await once(first.child, 'message');
  await first.kill();
  await send(order);
  await send(refused);
  await send(other);
  const second = consumer(t, 'kafka', name);
  const failures = [];
  second.child.on('message', ({ failed }) => failed && failures.push(failed));
  await until(() => charges(other));
  assert.deepEqual([await charges(order), await charges(other), await charges(refused)], [1, 1, 0]);
  assert.deepEqual(failures, ['stet: sold out']);
});

test('the programs of the page pay', { timeout: 90_000 }, async (t) => {
  const env = { ...process.env, DATABASE_URL: process.env.STET_DATABASE, REDIS_URL: `redis://${process.env.STET_REDIS}`, KAFKA_BROKERS: process.env.STET_KAFKA };
  const amounts = [1, 2].map(() => Math.floor(Math.random() * 2 ** 40));
  const queue = new Queue('orders', { connection }), producer = kafka.producer(), admin = kafka.admin();
  t.after(() => Promise.all([queue.close(), producer.disconnect(), admin.disconnect()]));
  await Promise.all([producer.connect(), admin.connect()]);
  await admin.createTopics({ topics: [{ topic: 'orders', numPartitions: 1, replicationFactor: 1 }], waitForLeaders: true });
  for (let n = 0; n < 2; n++) await queue.add('pay', { order: randomUUID(), amount: amounts[0] });
  await producer.send({ topic: 'orders', messages: [{ value: JSON.stringify({ amount: amounts[1] }) }] });
  for (const name of ['bullmq.js', 'kafka.js']) {
    const child = fork(fileURLToPath(new URL(`../programs/${name}`, import.meta.url)), { env });
    t.after(() => child.kill('SIGKILL'));
  }
  await until(async () => (await payments(amounts[0])) === 2 && (await payments(amounts[1])) === 1);
});
