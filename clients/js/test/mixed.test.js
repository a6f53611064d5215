import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { closeDatabase, charges, lasting, post } from './support.js';
import { charge, frameworks, start } from './service.js';

after(closeDatabase);

const go = process.env.STET_GO_URL;

for (const framework of frameworks) {
  test(`${framework}: Node replays outcomes of Go, and Go those of Node`, { timeout: 60_000 }, async (t) => {
    const { url, stop } = await start(framework, charge);
    t.after(stop);
    for (const [first, second] of [[go, url], [url, go]]) {
      const key = randomUUID();
      const path = '/payments?a=%2F&b';
      const ran = await post(first, { key, path });
      assert.equal(ran.status, 201, ran.text);
      const again = await post(second, { key, path });
      assert.deepEqual(again.headers['idempotent-replayed'], ['true'], again.text);
      for (const got of [ran, again]) delete got.headers['x-outer'], delete got.headers['x-powered-by'], delete got.headers['keep-alive'];
      assert.deepEqual(lasting(again), lasting(ran));
      const other = await post(second, { key, path, body: '{"amount":43}' });
      assert.equal(other.type, 'mismatch');
      // Go's detail also says which part differs: stet_begin does not return the name of the stored operation.
      const words = (got) => got.body.toString().replace(/ It was of an operation with [^"]*?\)\./, '');
      assert.equal(words(other), words(await post(first, { key, path, body: '{"amount":43}' })), 'both say it in the same words');
      assert.equal(await charges(key), 1);
    }
  });

  test(`${framework}: Go and Node asked at the same time charge once`, { timeout: 60_000 }, async (t) => {
    const { url, stop } = await start(framework, charge);
    t.after(stop);
    const key = randomUUID();
    await Promise.all(Array.from({ length: 16 }, async (_, i) => {
      for (;;) {
        const got = await post(i % 2 ? go : url, { key });
        if (got.status !== 409) return assert.equal(got.status, 201, got.text);
      }
    }));
    assert.equal(await charges(key), 1);
  });

  test(`${framework}: the same refusals as Go's, to the byte`, { timeout: 60_000 }, async (t) => {
    const { url, stop } = await start(framework, charge);
    t.after(stop);
    const key = randomUUID();
    const repeated = framework === 'next' ? [] : [{ headers: { 'Idempotency-Key': ['a', 'b'] } }]; // a Request joins them, and the comma is refused
    for (const request of [{}, { key: ' ' }, { key: 'a,b' }, { key: '"a' }, { key: 'k'.repeat(256) }, { key: '"a b"' }, ...repeated,
      { key, account: '' }, { key, account: 'x'.repeat(1025) }]) {
      const [ours, theirs] = [await post(url, request), await post(go, request)];
      assert.deepEqual([ours.status, ours.text, ours.headers.link, ours.headers['content-type'], ours.headers['cache-control']],
        [theirs.status, theirs.text, theirs.headers.link, theirs.headers['content-type'], theirs.headers['cache-control']]);
    }
  });
}
