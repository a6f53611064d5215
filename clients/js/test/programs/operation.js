import pg from 'pg';
import { operation } from '@stet-go/stet';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const [key = 'k-42'] = process.argv.slice(2);

const { value, replayed } = await operation(pool, { scope: 'acct_1', key, payload: { amount: 42 } }, async (op) => {
  const { rows } = await op.client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [42]);
  return { payment: rows[0].id };
});
console.log(replayed ? 'replayed' : 'paid', value.payment);
await pool.end();
