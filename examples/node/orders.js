// A bookshop behind stet proxy. It knows nothing of keys, retries and queues: it packs, charges and records each order.
//
// The sidecar takes orders (202), sends each one here, and keeps the answer. For that the shop does three things: it says
// how far an order is (Stet-Progress), it names the message that is to leave (Stet-Emit), and it finds out what became of
// an order whose answer was never heard (verify), because this process died.
//
//     node cards.js & node orders.js & stet proxy --config orders.yaml

import { closeSync, existsSync, fsyncSync, openSync, readFileSync, truncateSync, writeSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import express from 'express';

const stet = process.env.STET_URL ?? 'http://127.0.0.1:8080';
const cards = process.env.CARDS_URL ?? 'http://127.0.0.1:3001';
const packSeconds = Number(process.env.PACK_SECONDS ?? 1); // a copy; progress is kept once a second

// The shop's own records, of which the sidecar knows nothing: a line of JSON each, in place of a database.
const file = process.env.SHOP ?? 'shop.jsonl';
const text = existsSync(file) ? readFileSync(file, 'utf8') : '';
const whole = text.slice(0, text.lastIndexOf('\n') + 1);
if (whole !== text) truncateSync(file, Buffer.byteLength(whole)); // it was killed in the middle of a line
const orders = new Map(), shipments = [];
const keep = (line) => (line.operation ? orders.set(line.operation, line.order) : shipments.push(line));
for (const line of whole.split('\n').slice(0, -1)) keep(JSON.parse(line));

function record(line) {
  const fd = openSync(file, 'a');
  writeSync(fd, `${JSON.stringify(line)}\n`);
  fsyncSync(fd);
  closeSync(fd);
  keep(line);
}

// Writes an order down that was charged, if it is not there, and returns it.
function placed(operation, { book, copies, charge }) {
  if (!orders.has(operation)) record({ operation, order: { id: orders.size + 1, book, copies, charge } });
  return orders.get(operation);
}

const send = (method, url, content, headers) =>
  fetch(url, { method, headers: { 'Content-Type': 'application/json', ...headers }, body: content && JSON.stringify(content), signal: AbortSignal.timeout(30000) });

// Shows on the order's status page how far it is. The order continues if that fails.
const progress = (req, fraction, message) =>
  send('PATCH', stet + req.get('Stet-Status-Page'), { fraction, message }, { 'Stet-Progress': req.get('Stet-Progress') }).catch(() => {});

const app = express();
app.use(express.json());

app.post('/orders', async (req, res) => {
  const operation = req.get('Stet-Operation'), { book, copies } = req.body;
  if (typeof book !== 'string' || !(copies >= 1 && copies <= 100)) return res.status(422).json({ error: 'an order is a book and 1 to 100 copies' });
  for (let n = 0; n < copies; n++) {
    await progress(req, (0.8 * n) / copies, `packing copy ${n + 1}`);
    await setTimeout(packSeconds * 1000);
  }
  await progress(req, 0.8, 'charging');
  // Each attempt has a reference of its own, so that verify can close the reference of a killed one.
  const paid = await send('POST', `${cards}/charges`, { reference: `${operation}.${req.get('Stet-Fence')}`, book, copies });
  if (paid.status !== 201) return res.status(503).set('Stet-Execution', 'none').end(); // verify was faster, and has said that nothing happened
  const order = placed(operation, await paid.json());
  res.status(201).location(`/orders/${order.id}`).set('Stet-Emit', JSON.stringify({ to: 'shipments', body: { order: order.id } })).json(order);
});

// What became of an order? The sidecar asks when it has not heard the answer. A no is a promise: it never will.
app.get('/orders/verify', async (req, res) => {
  const operation = req.get('Stet-Operation');
  let order = orders.get(operation);
  if (!order) { // it may have died between the charge and its record
    const answer = await send('DELETE', `${cards}/charges/${operation}.${req.get('Stet-Fence')}`);
    if (answer.status !== 200) return res.status(503).end(); // it is asked again
    const paid = await answer.json();
    if (paid.charge === null) return res.status(404).set({ 'Stet-Operation': operation, 'Stet-Execution': 'none' }).end();
    order = placed(operation, paid);
  }
  res.location(`/orders/${order.id}`).set({ 'Stet-Operation': operation, 'Stet-Status': '201' }).json(order);
});

app.get('/orders/:id', (req, res) => {
  const order = [...orders.values()].find(({ id }) => id === Number(req.params.id));
  res.status(order ? 200 : 404).json(order);
});

// Takes the message. Its ID is its key, so that the sidecar hands it over once, however often it is sent.
app.post('/shipments', (req, res) => {
  record({ message: req.get('Idempotency-Key'), order: req.body.order });
  res.status(201).json({ shipped: req.body.order });
});

app.get('/shipments', (req, res) => res.json(shipments));

app.get('/', (req, res) => res.sendFile('orders.html', { root: import.meta.dirname }));

const server = app.listen(process.env.PORT ?? 3000, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
