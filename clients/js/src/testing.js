// Finds duplicate effects of a service in a test of node --test, with or without stet.

import { spawn } from 'node:child_process';
import { randomInt, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const retryable = [0, 409, 425, 429, 500, 502, 503];
const rounds = 3, duplicates = 4;
const agent = new http.Agent({ keepAlive: false });

/** See testing.d.ts. */
export async function check({ start, request, effects, header = 'Idempotency-Key', patience = 120_000 }) {
  const checker = new Checker({ start, request, effects, header, patience });
  try {
    await checker.run();
  } finally {
    await checker.kill();
  }
  if (checker.found.length > 0) throw new Error(`@stet-go/stet/testing: ${checker.found.join('\n')}`);
}

const ok = ({ status }) => status >= 200 && status < 300;
const text = ({ status, body }) => `${status || 'an error'} ${JSON.stringify(body.slice(0, 200))}`;
const equal = (a, b) => ['status', 'body', 'contentType', 'location'].every((name) => a[name] === b[name]);

class Checker {
  found = [];
  reported = new Set();
  keys = new Map();
  next = randomInt(1_000_000, 900_000_000); // a database can have the operations of earlier runs

  constructor(options) {
    Object.assign(this, options);
  }

  // Starts the program, and waits until it accepts connections.
  async launch() {
    let said = '';
    for (let tries = 0; tries < 3; tries++) { // another process can take the port
      this.port = await freePort();
      const [program, ...args] = this.start(this.port);
      said = '';
      this.child = spawn(program, args, { detached: true, stdio: ['ignore', 'pipe', 'pipe'] });
      for (const stream of [this.child.stdout, this.child.stderr]) stream.on('data', (data) => { said += data; });
      this.exited = once(this.child, 'close');
      this.exited.catch(() => {}); // kill awaits it
      let ended = false;
      this.child.on('exit', () => { ended = true; }).on('error', () => { ended = true; });
      for (const end = Date.now() + this.patience; !ended && Date.now() < end; await sleep(20)) if (await accepts(this.port)) return;
      await this.kill();
    }
    throw new Error(`@stet-go/stet/testing: the program does not accept connections at the port that start received; its output: ${said}`);
  }

  // Kills the process group.
  async kill() {
    const { child } = this;
    this.child = undefined;
    if (!child) return;
    if (child.pid === undefined) return void (await this.exited); // it rejects: there is no such program
    try {
      process.kill(-child.pid, 'SIGKILL');
    } catch (error) {
      if (error.code !== 'ESRCH') throw error;
    }
    await this.exited;
  }

  begin() {
    this.keys.set(++this.next, `stet-testing-${this.next}-${randomUUID()}`);
    return this.next;
  }

  // Returns the response, or the status 0.
  async send(n, key = this.keys.get(n), signal = undefined) {
    const { path, body = '', method = 'POST', headers = { 'Content-Type': 'application/json' } } = this.request(n);
    try {
      const req = http.request({ host: '127.0.0.1', port: this.port, path, method, agent, signal, headers: { ...headers, [this.header]: key } });
      req.end(body);
      const [res] = await once(req, 'response');
      const chunks = [];
      for await (const chunk of res) chunks.push(chunk);
      return { status: res.statusCode, body: Buffer.concat(chunks).toString('latin1'), contentType: res.headers['content-type'], location: res.headers.location };
    } catch (error) {
      return { status: 0, body: String(error) };
    }
  }

  // Retries until there is a response that is no reason to retry.
  async final(name, n) {
    const end = Date.now() + this.patience;
    for (let pause = 20; ; pause = Math.min(2 * pause, 1000)) {
      const answer = await this.send(n);
      if (!retryable.includes(answer.status)) return answer;
      if (Date.now() > end) {
        this.report(n, `${name}: operation ${n} still received ${text(answer)} after ${this.patience} ms of retries; want a final response`);
        return answer;
      }
      await sleep(pause);
    }
  }

  report(n, message) {
    if (!this.reported.has(n)) this.found.push(message);
    this.reported.add(n);
  }

  // Compares the number of effects with the promise of the response.
  async count(name, n, last) {
    const number = await this.effects(n);
    if (number > 1 || (ok(last) && number === 0)) this.report(n, `${name}: operation ${n} has ${number} effects after ${text(last)}; want ${ok(last) ? '1' : 'at most 1'}`);
  }

  same(name, n, first, again) {
    if (ok(first) && again.status && !equal(first, again)) {
      this.report(n, `${name}: operation ${n} received ${text(first)}, and on a retry ${text(again)}; want the same status, body, Content-Type and Location`);
    }
  }

  async run() {
    await this.launch();
    const n = this.begin(), began = performance.now();
    const first = await this.send(n);
    const typical = performance.now() - began;
    if (!ok(first)) throw new Error(`@stet-go/stet/testing: the first request of operation ${n} received ${text(first)}: let request return a request that succeeds`);
    for (let i = 0; i < rounds; i++) this.same('repeated', n, first, await this.final('repeated', n));
    await this.count('repeated', n, first);
    const other = this.begin();
    const answer = await this.send(other, this.keys.get(n));
    if (ok(answer)) this.report(other, `another request: operation ${other} with the key of operation ${n} received ${text(answer)}; want 4xx`);
    for (let i = 1; i <= rounds; i++) {
      await this.together();
      await this.disconnected(typical / 2);
      await this.killed('killed when the effect is visible', async (n) => (await this.effects(n)) > 0);
      await this.killed('killed after the response', () => false);
      await this.killed('killed during the request', (_, ms) => ms > (typical * i) / (rounds + 1));
    }
    for (const n of this.keys.keys()) { // effects can come late
      const number = await this.effects(n);
      if (number > 1) this.report(n, `operation ${n} has ${number} effects at the end; want 1`);
    }
  }

  // Sends duplicates of an operation at the same time.
  async together() {
    const name = 'at the same time', n = this.begin();
    const answers = await Promise.all(Array.from({ length: duplicates }, () => this.send(n)));
    const last = await this.final(name, n);
    for (const answer of answers) this.same(name, n, answer, last);
    await this.count(name, n, last);
  }

  async disconnected(after) {
    const name = 'the client disconnects', n = this.begin(), leave = new AbortController();
    const sent = this.send(n, undefined, leave.signal);
    await sleep(after);
    leave.abort();
    await sent;
    await this.count(name, n, await this.final(name, n));
  }

  // Kills the program at a moment of a request, or after its response, starts it again, and retries.
  async killed(name, moment) {
    const n = this.begin(), began = performance.now();
    let answered = false;
    const sent = this.send(n).then(() => { answered = true; });
    while (!answered && !(await moment(n, performance.now() - began))) await sleep(1);
    await this.kill();
    await sent;
    await this.launch();
    await this.count(name, n, await this.final(name, n));
  }
}

async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

const accepts = (port) => new Promise((resolve) => {
  const socket = net.connect(port, '127.0.0.1');
  socket.on('connect', () => { socket.destroy(); resolve(true); }).on('error', () => resolve(false));
});
