// A shop that does not know of idempotency, behind stet proxy, behind a connection that can be cut.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { cutter } from './cutter.js';

if (!process.env.STET_PROGRAM) throw new Error('these tests are run by: go test ./clients/js');

const source = dirname(fileURLToPath(import.meta.resolve('@stet-go/stet/client')));
const types = { html: 'text/html', js: 'text/javascript' };

/**
 * Starts the shop: POST /charges charges at once, POST /jobs after stet proxy has accepted it. charges are the
 * charged keys, and hold() lets charges wait until
 * release().
 */
export async function shop(t, pages = {}) {
  const charges = [];
  let gate = Promise.resolve(), release = () => {}, arrived = () => {};
  const server = http.createServer(async (req, res) => {
    if (/^\/(?:orders|operations|gates)/.test(req.url)) return forward(req, res);
    if (req.method !== 'POST') return file(req, res, pages);
    req.resume();
    await once(req, 'end');
    charges.push(req.headers['idempotency-key']);
    const charge = charges.length;
    arrived();
    await gate;
    const body = JSON.stringify({ charge });
    return res.writeHead(201, { 'Content-Type': 'application/json', 'Content-Length': body.length, Location: `/charges/${charge}` }).end(body);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const proxy = await sidecar(t, `http://127.0.0.1:${server.address().port}`);
  const wire = await cutter(proxy);
  t.after(() => {
    wire.close();
    server.close();
    server.closeAllConnections();
  });
  return {
    url: wire.url, wire, charges,
    hold: () => {
      const before = release; // what an earlier hold has kept is released, too
      gate = new Promise((resolve) => (release = () => { before(); resolve(); }));
      return new Promise((resolve) => (arrived = resolve));
    },
    release: () => release(),
  };
}

// forward is how the shop reaches the service that accepts orders.
function forward(req, res) {
  const out = http.request(process.env.STET_ACCEPTING + req.url, { method: req.method, headers: req.headers }, (answer) => {
    res.writeHead(answer.statusCode, answer.rawHeaders);
    answer.pipe(res);
  });
  out.on('error', () => res.destroy());
  res.on('close', () => out.destroy());
  req.pipe(out);
}

async function file(req, res, pages) {
  const { pathname } = new URL(req.url, 'http://shop');
  const type = types[pathname.split('.').at(-1)] ?? 'text/html';
  const at = pages[pathname] ?? (pathname.startsWith('/stet/') && !pathname.includes('..') ? join(source, pathname.slice(6)) : undefined);
  try {
    const body = at instanceof URL || typeof at === 'string' ? await readFile(at) : undefined;
    res.writeHead(body ? 200 : 404, { 'Content-Type': type, 'Cache-Control': 'no-store' }).end(body);
  } catch {
    res.writeHead(404).end();
  }
}

/** Starts stet proxy over SQLite, and returns its URL. */
async function sidecar(t, upstream) {
  const dir = await mkdtemp(join(tmpdir(), 'stet-'));
  const config = join(dir, 'stet.yaml');
  await writeFile(config, `upstream: {url: "${upstream}"}\nstore: ${join(dir, 'stet.db')}\nscope: single-tenant\nunrouted: pass\nroutes:\n  - {path: /charges}\n  - {path: /jobs, async: {status: /states/}}\n`);
  const child = spawn(process.env.STET_PROGRAM, ['proxy', '--config', config, '--listen', '127.0.0.1:0', '--admin-listen', 'off'], { stdio: ['ignore', 'ignore', 'pipe'] });
  const exited = once(child, 'exit');
  t.after(async () => {
    child.kill('SIGKILL');
    await exited;
    await rm(dir, { recursive: true });
  });
  const lines = [];
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      lines.push(line);
      const found = /listening .*(http:\/\/127\.0\.0\.1:\d+)/.exec(line);
      if (found) resolve(found[1]);
    }).on('close', () => reject(new Error(`stet proxy does not listen: ${lines.join('\n')}`)));
  });
}
