// The uses that the types of the middleware allow, for tsc.

import express from 'express';
import pg from 'pg';
import { canonicalJSON, emit, migrate, operation, OperationError, PermanentError, type Options } from '@stet-go/stet';
import { idempotency, keepBody } from '@stet-go/stet/express';

const pool = new pg.Pool();
const options: Options<express.Request> = { pool, scope: (req) => req.get('X-Account'), mode: 'statements', keep: '1 day', tombstone: null, canonicalize: canonicalJSON('/at') };
const once = idempotency(options);
const app = express().use(express.json({ verify: keepBody }));
app.post('/payments', once(async (req, res, client) => {
  const { rows } = await client.query<{ id: string }>('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [req.body.amount]);
  const id: string = await emit(client, { to: 'payments', body: { paid: rows[0]?.id } });
  res.status(201).json({ id, bytes: req.rawBody.length });
}));
idempotency({ pool, sidecar: true, maxResult: 1000 });
// @ts-expect-error: there are two modes
idempotency({ pool, scope: () => 'one', mode: 'tables' });
// @ts-expect-error: a scope is required
idempotency({ pool, mode: 'functions' });
// @ts-expect-error: the sidecar has written the record
idempotency({ pool, sidecar: true, mode: 'statements' });

await migrate(pool, { role: 'shop', mode: 'statements', messages: true });
const { value, replayed } = await operation(pool, { scope: 'acct_1', key: 'k-42', payload: { amount: 42 }, keep: '1 day' }, async (op) => {
  const { rows } = await op.client.query<{ id: string }>('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [42]);
  if (rows.length === 0) throw new PermanentError('sold out', { details: { left: 0 } });
  return { payment: rows[0]!.id };
}).catch((error: unknown) => { throw error instanceof OperationError && error.retryable ? new Error(error.reason) : error; });
const paid: string = value.payment, again: boolean = replayed;
void [paid, again];
// @ts-expect-error: a key is required
await operation(pool, { scope: 'acct_1' }, () => 1);

const { value: result } = await operation(new pg.Pool(), { scope: 'a', key: 'k' }, async () => ({ at: new Date(), list: [{ n: 1, none: undefined }] as const, maybe: null as { id: string } | null }));
const at: string = result.at, listed: 1 = result.list[0].n, id: string | undefined = result.maybe?.id;
console.log(at, listed, id);
const { value: anything } = await operation(new pg.Pool(), { scope: 'a', key: 'k' }, async (op) => (await op.client.query('SELECT 1')).rows[0]);
console.log(anything.column);
const { value: nothing } = await operation(new pg.Pool(), { scope: 'a', key: 'k' }, async () => {});
console.log(nothing satisfies void);
// @ts-expect-error: JSON has no Date
const date: Date = result.at;
console.log(date);
