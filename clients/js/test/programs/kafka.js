import kafkajs from 'kafkajs';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/kafka';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const once = idempotency({ pool, scope: 'billing', failed: ({ message }) => console.error(`a message was left out: ${message}`) });

const consumer = new kafkajs.Kafka({ brokers: process.env.KAFKA_BROKERS.split(',') }).consumer({ groupId: 'billing' });
await consumer.connect();
await consumer.subscribe({ topic: 'orders', fromBeginning: true });
await consumer.run({ eachMessage: once(async ({ message }, client) => {
  await client.query('INSERT INTO payments (amount) VALUES ($1)', [JSON.parse(message.value).amount]);
}) });
