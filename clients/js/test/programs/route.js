// app/payments/route.js
import pg from 'pg';
import { idempotency } from '@stet-go/stet/next';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const once = idempotency({ pool, scope: (request) => request.headers.get('X-Account') }); // as your authentication has established it

export const POST = once(async (request, client) => {
  const { amount } = await request.json();
  const { rows } = await client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [amount]);
  return Response.json({ payment: rows[0].id }, { status: 201 });
});
