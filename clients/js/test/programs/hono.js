import { serve } from '@hono/node-server';
import { Hono } from 'hono';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/hono';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const once = idempotency({ pool, scope: (c) => c.req.header('X-Account') }); // as your authentication has established it

const app = new Hono();
app.post('/payments', once, async (c) => {
  const { amount } = await c.req.json();
  const { rows } = await c.get('client').query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [amount]);
  return c.json({ payment: rows[0].id }, 201);
});

serve({ fetch: app.fetch, port: Number(process.env.PORT ?? 8080), hostname: '127.0.0.1' }, ({ port }) =>
  console.log(`listening on http://127.0.0.1:${port}`));
