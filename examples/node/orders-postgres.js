// A bookshop behind stet proxy, on PostgreSQL and RabbitMQ. An order, its answer and its message are one commit.
//
// The sidecar takes orders (202) and sends each one here. This process may die at any point: before the commit nothing is
// left of the order, and it is sent again; after it, it is done. No verification is needed. An effect
// elsewhere, the charge, has a key that is the same each time.
//
//     node cards.js & node orders-postgres.js & stet proxy --config orders-postgres.yaml & stet consume --config orders-postgres.yaml

import { setTimeout } from 'node:timers/promises';
import express from 'express';
import pg from 'pg';
import { emit } from '@stet-go/stet';
import { idempotency } from '@stet-go/stet/express';

const stet = process.env.STET_URL ?? 'http://127.0.0.1:8080';
const cards = process.env.CARDS_URL ?? 'http://127.0.0.1:3001';
const queue = process.env.SHIPMENTS ?? 'shipments';
const packSeconds = Number(process.env.PACK_SECONDS ?? 1); // a copy; progress is kept once a second

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL }); // the database of the sidecar's store
const once = idempotency({ pool, sidecar: true });

const send = (method, url, content, headers) =>
  fetch(url, { method, headers: { 'Content-Type': 'application/json', ...headers }, body: JSON.stringify(content), signal: AbortSignal.timeout(30000) });

// Shows on the order's status page how far it is. The order continues if that fails.
const progress = (req, fraction, message) =>
  send('PATCH', stet + req.get('Stet-Status-Page'), { fraction, message }, { 'Stet-Progress': req.get('Stet-Progress') }).catch(() => {});

const app = express();

app.post('/orders', once(async (req, res, client) => {
  const { book, copies } = req.body, operation = req.get('Stet-Operation');
  if (typeof book !== 'string' || !(copies >= 1 && copies <= 100)) return res.status(422).json({ error: 'an order is a book and 1 to 100 copies' });
  for (let n = 0; n < copies; n++) {
    await progress(req, (0.8 * n) / copies, `packing copy ${n + 1}`);
    await setTimeout(packSeconds * 1000);
  }
  await progress(req, 0.8, 'charging');
  // The processor knows a repeated attempt. An exception rolls back, and the order is sent again.
  const paid = await send('POST', `${cards}/charges`, { reference: operation, book, copies }, { 'Idempotency-Key': operation });
  if (paid.status !== 201) throw new Error(`the card processor answered ${paid.status}`);
  const { charge } = await paid.json();
  const { rows: [order] } = await client.query('INSERT INTO orders (book, copies, charge) VALUES ($1, $2, $3) RETURNING id::int, book, copies, charge', [book, copies, charge]);
  await emit(client, { to: queue, body: { order: order.id } });
  res.status(201).location(`/orders/${order.id}`).json(order);
}));

// Takes a message of the queue, from "stet consume", once: its writes and the record of the message are one commit.
app.post('/shipments', once(async (req, res, client) => {
  await client.query('INSERT INTO shipments VALUES ($1, $2)', [req.get('Idempotency-Key'), req.body.order]);
  res.status(201).json({ shipped: req.body.order });
}));

app.get('/orders/:id', async (req, res) => {
  const { rows } = await pool.query('SELECT id::int, book, copies, charge FROM orders WHERE id = $1', [req.params.id]);
  res.status(rows.length ? 200 : 404).json(rows[0]);
});

app.get('/shipments', async (req, res) => res.json((await pool.query('SELECT message, "order"::int FROM shipments')).rows));

app.get('/', (req, res) => res.sendFile('orders.html', { root: import.meta.dirname }));

const server = app.listen(process.env.PORT ?? 3000, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
