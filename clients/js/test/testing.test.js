// check of @stet-go/stet/testing finds planted defects, and nothing in a service with stet.

import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { check } from '@stet-go/stet/testing';
import { charges, closeDatabase } from './support.js';

after(closeDatabase);

// A service that remembers responses by hand. A payment is a line of the file. The kind is its defect. It has a child process, and lists its processes.
const shop = `
import { spawn } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
const [, path, kind, port] = process.argv;
const stored = new Map();
appendFileSync(path + '.processes', process.pid + '\\n' + spawn('sleep', ['600']).pid + '\\n');
http.createServer(async (req, res) => {
  let body = '';
  for await (const chunk of req) body += chunk;
  const key = req.headers['idempotency-key'], known = stored.get(key);
  if (kind === 'races') await sleep(100); // the other duplicates read the key, too
  if (known && kind !== 'repeats') {
    const same = known.body === body || kind === 'confuses';
    return res.writeHead(same ? 201 : 422).end(same ? known.text : 'another request');
  }
  appendFileSync(path, body + '\\n');
  stored.set(key, { body, text: 'paid ' + body });
  res.writeHead(201).end('paid ' + body);
}).listen(Number(port), '127.0.0.1');
`;

// Whether it is a process of the service. A process that has ended has no command line.
const runs = async (pid, path) => {
  const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  return command.includes(path) || command === 'sleep\x00600\x00';
};

for (const [kind, names, never] of [
  ['repeats', ['repeated', 'another request', 'at the same time', 'killed after the response']],
  ['races', ['at the same time']],
  ['forgets', ['killed after the response'], 'at the same time'],
  ['confuses', ['another request']],
]) {
  test(`a service that ${kind} is found, and no process of it is left`, { timeout: 300_000 }, async (t) => {
    const dir = await mkdtemp(join(tmpdir(), 'stet-'));
    t.after(() => rm(dir, { recursive: true }));
    const path = join(dir, 'payments');
    await writeFile(path, '');
    const lines = async (name) => (await readFile(name, 'utf8')).trim().split('\n');
    await assert.rejects(check({
      start: (port) => [process.execPath, '--input-type=module', '-e', shop, path, kind, String(port)],
      request: (n) => ({ path: '/payments', body: String(n) }),
      effects: async (n) => (await lines(path)).filter((line) => line === String(n)).length,
    }), ({ message }) => {
      for (const name of names) assert.ok(message.includes(name), `no ${name}: ${message}`);
      assert.ok(!never || !message.includes(never), message);
      return true;
    });
    const processes = await lines(`${path}.processes`);
    assert.ok(processes.length >= 20, 'ten starts, two processes each');
    for (const pid of processes) while (await runs(pid, path)) await sleep(10); // the test has a time-out
  });
}

test('a program that does not listen is an error with its output', async () => {
  await assert.rejects(check({ start: () => ['sh', '-c', 'echo no shop here; exit 1'], request: () => ({ path: '/' }), effects: () => 0 }), /no shop here/);
  await assert.rejects(check({ start: () => ['/nothing/here'], request: () => ({ path: '/' }), effects: () => 0 }), /ENOENT|does not accept/);
});

const withStet = `
import express from 'express';
import pg from 'pg';
import { idempotency } from '@stet-go/stet/express';
const app = express(), pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
const once = idempotency({ pool, mode: process.env.STET_MODE, scope: () => 'acct_1' });
app.post('/payments', once(async (req, res, client) => {
  const { rows } = await client.query('INSERT INTO charges (key, amount) VALUES ($1, $1::text::bigint) RETURNING id', [String(req.body.amount)]);
  res.status(201).json({ payment: rows[0].id });
}));
app.listen(Number(process.argv[1]), '127.0.0.1');
`;

test('a service with stet has no finding', { timeout: 300_000 }, () => check({
  start: (port) => [process.execPath, '--input-type=module', '-e', withStet, String(port)],
  request: (n) => ({ path: '/payments', body: JSON.stringify({ amount: n }) }),
  effects: (n) => charges(String(n)),
}));
