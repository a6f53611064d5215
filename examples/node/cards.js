// A card processor, for trying things: it forgets everything when it ends.
//
// Each POST /charges is a charge, unless it has an Idempotency-Key that was there before. DELETE /charges/REFERENCE says
// the charges under a reference, and refuses later ones. No packages: node cards.js

import { createServer } from 'node:http';
import { json } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';

const seconds = Number(process.env.CARD_SECONDS ?? 1); // how long a charge takes
const charges = [], keys = new Map(), closed = new Set();

const server = createServer(async (req, res) => {
  const answer = (status, content) => res.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(content));
  const reference = req.url.replace('/charges/', '');
  if (req.method === 'GET') return answer(200, charges);
  if (req.method === 'DELETE') {
    closed.add(reference);
    return answer(200, charges.find((charge) => charge.reference === reference) ?? { charge: null });
  }
  const asked = await json(req), key = req.headers['idempotency-key'];
  await setTimeout(seconds * 1000);
  if (closed.has(asked.reference)) return answer(409, { closed: asked.reference });
  if (keys.has(key)) return answer(201, keys.get(key));
  const charge = { charge: charges.length + 1, ...asked };
  charges.push(charge);
  if (key) keys.set(key, charge);
  answer(201, charge);
});
server.listen(process.env.PORT ?? 3001, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
