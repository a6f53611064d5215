// A service whose pool goes through PgBouncer in transaction mode, with more callers than connections of the server's.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { emit } from '@stet-go/stet';
import { charge, frameworks, start } from '../service.js';
import { charges, closeDatabase, post } from '../support.js';

after(closeDatabase);

for (const framework of frameworks) {
  test(`${framework}: every caller pays once, and every retry is a replay`, { timeout: 60_000 }, async (t) => {
    const service = await start(framework, async (request) => {
      await emit(request.client, { to: 'payments', body: { paid: 42 } });
      await request.client.query('BEGIN');
      await request.client.query('COMMIT');
      await charge(request);
    });
    t.after(service.stop);
    const keys = Array.from({ length: 60 }, () => randomUUID());
    for (const replayed of [undefined, ['true']]) {
      const got = await Promise.all(keys.map((key) => post(service.url, { key })));
      for (const { status, headers, text } of got) assert.deepEqual([status, headers['idempotent-replayed']], [201, replayed], text);
    }
    for (const key of keys) assert.equal(await charges(key), 1);
    assert.deepEqual(service.logged.filter((line) => !line.includes('has run for a second')), []); // a busy machine is slow
  });

  test(`${framework}: a refusal is stored after its writes are undone`, async (t) => {
    const service = await start(framework, async (request) => {
      await charge({ ...request, reply: () => {} });
      throw Object.assign(new Error('no'), { status: 409 });
    });
    t.after(service.stop);
    const key = randomUUID();
    for (const replayed of [undefined, ['true']]) {
      const got = await post(service.url, { key });
      assert.deepEqual([got.status, got.headers['idempotent-replayed'], await charges(key)], [409, replayed, 0]);
    }
  });
}
