// The programs of docs/js.md run, each as a process.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { serve } from '@hono/node-server';
import { closeDatabase, post } from '../support.js';

after(closeDatabase);

const env = { ...process.env, DATABASE_URL: process.env.STET_DATABASE, PORT: '0' };
const file = (name) => fileURLToPath(new URL(name, import.meta.url));

async function paysOnce(url) {
  const key = randomUUID();
  const first = await post(url, { key });
  assert.equal(first.status, 201, first.text);
  const retry = await post(url, { key });
  assert.deepEqual([retry.status, retry.text, retry.headers['idempotent-replayed']], [201, first.text, ['true']]);
  assert.match(first.text, /^{"payment":"\d+"}$/);
}

for (const name of ['koa.js', 'hono.js', 'nest.js']) {
  test(`${name} pays once`, { timeout: 60_000 }, async (t) => {
    const child = spawn(process.execPath, [file(name)], { env, stdio: ['ignore', 'pipe', 'inherit'] });
    t.after(() => child.kill());
    for await (const line of createInterface({ input: child.stdout })) {
      const [, url] = /listening on (http:\S+)/.exec(line) ?? [];
      if (url !== undefined) return paysOnce(url);
    }
    return assert.fail('it does not listen');
  });
}

test('route.js pays once', async (t) => {
  process.env.DATABASE_URL = process.env.STET_DATABASE;
  const { POST } = await import('./route.js');
  const server = serve({ fetch: (request) => POST(request), port: 0, hostname: '127.0.0.1' });
  await once(server, 'listening');
  t.after(() => { server.closeAllConnections(); server.close(); });
  await paysOnce(`http://127.0.0.1:${server.address().port}`);
});

test('operation.js pays once', async () => {
  const run = promisify(execFile);
  const key = randomUUID();
  const [, id] = /^paid (\d+)\n$/.exec((await run(process.execPath, [file('operation.js'), key], { env })).stdout);
  assert.equal((await run(process.execPath, [file('operation.js'), key], { env })).stdout, `replayed ${id}\n`);
});
