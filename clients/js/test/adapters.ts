// The uses that the types of the adapters allow, for tsc.

import Koa from 'koa';
import { Hono } from 'hono';
import { UseInterceptors } from '@nestjs/common';
import pg from 'pg';
import { idempotency as onHono } from '@stet-go/stet/hono';
import { idempotency as onKoa } from '@stet-go/stet/koa';
import { idempotency as onNest } from '@stet-go/stet/nest';
import { idempotency as onNext } from '@stet-go/stet/next';

const pool = new pg.Pool();
new Koa().use(onKoa({ pool, scope: (ctx) => ctx.get('X-Account') })(async (ctx, client) => {
  ctx.body = (await client.query<{ id: string }>('SELECT $1 AS id', [ctx.request.body.amount])).rows[0]?.id;
}));
new Hono().post('/payments', onHono({ pool, scope: (c) => c.req.header('X-Account') }), async (c) => c.json((await c.get('client').query('SELECT 1')).rows));
UseInterceptors(onNest({ pool, scope: (request) => request.headers['x-account'], mode: 'statements' }));
export const POST = onNext({ pool, scope: (request) => request.headers.get('X-Account') ?? '' })(async (request, client, { params }: { params: Promise<{ id: string }> }) =>
  Response.json({ id: (await params).id, rows: (await client.query(await request.text())).rows }));
// @ts-expect-error: a scope is required
onHono({ pool });
// @ts-expect-error: a handler returns a Response
onNext({ pool, sidecar: true })(async () => 'paid');
