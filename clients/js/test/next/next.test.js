// The route of docs/js.md in the server of Next.js, after a build for production.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { cpSync, mkdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { closeDatabase, post } from '../support.js';

after(closeDatabase);

const root = fileURLToPath(new URL('../../', import.meta.url));
const next = (...args) => [process.execPath, [`${root}node_modules/next/dist/bin/next`, ...args], { cwd: root, stdio: ['ignore', 'pipe', 'inherit'],
  env: { ...process.env, DATABASE_URL: process.env.STET_DATABASE, NEXT_TELEMETRY_DISABLED: '1', NODE_ENV: 'production' } }];

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

test('the route pays once in the server of Next.js, and a thrown error pays nothing', { timeout: 280_000 }, async (t) => {
  mkdirSync(`${root}app/payments`, { recursive: true });
  cpSync(`${root}test/programs/route.js`, `${root}app/payments/route.js`);
  execFileSync(...next('build'));
  const port = await freePort();
  const server = spawn(...next('start', '-p', String(port), '-H', '127.0.0.1'));
  t.after(() => server.kill('SIGKILL'));
  for await (const line of createInterface({ input: server.stdout })) if (line.includes('Ready')) break;
  const url = `http://127.0.0.1:${port}`, key = randomUUID();
  const first = await post(url, { key });
  assert.deepEqual([first.status, first.headers['idempotent-replayed']], [201, undefined], first.text);
  const retry = await post(url, { key });
  assert.deepEqual([retry.status, retry.text, retry.headers['idempotent-replayed']], [201, first.text, ['true']]);
  assert.equal((await post(url, { key, body: '{"amount":43}' })).type, 'mismatch');
  const wrong = randomUUID();
  for (let n = 0; n < 2; n++) {
    const got = await post(url, { key: wrong, body: '{"amount":"none"}' });
    assert.deepEqual([got.status, got.headers['idempotent-replayed']], [500, undefined], 'nothing is stored');
  }
});
