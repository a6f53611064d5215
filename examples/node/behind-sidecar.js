// Payments behind stet proxy, which claims each one; the service settles it, in the transaction of its write.

import express from 'express';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/express';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL }); // the database of the sidecar's store
const once = idempotency({ pool, sidecar: true });

const app = express();
app.post('/payments', once(async (req, res, client) => {
  const { rows } = await client.query('INSERT INTO payments (account, amount) VALUES ($1, $2) RETURNING id', [req.get('X-Account'), req.body.amount]);
  res.status(201).location(`/payments/${rows[0].id}`).json({ payment: rows[0].id });
}));

const server = app.listen(process.env.PORT ?? 3000, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
