import Router from '@koa/router';
import Koa from 'koa';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/koa';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const once = idempotency({ pool, scope: (ctx) => ctx.get('X-Account') }); // as your authentication has established it

const router = new Router();
router.post('/payments', once(async (ctx, client) => {
  const { rows } = await client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [ctx.request.body.amount]);
  ctx.status = 201;
  ctx.body = { payment: rows[0].id };
}));

const server = new Koa().use(router.routes()).listen(process.env.PORT ?? 8080, '127.0.0.1', () =>
  console.log(`listening on http://127.0.0.1:${server.address().port}`));
