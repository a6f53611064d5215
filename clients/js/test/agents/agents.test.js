// Tools of agents: plain functions, and a server of @modelcontextprotocol/sdk in a process of its own.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import pg from 'pg';
import { PermanentError } from '@stet-go/stet';
import { CallRefused, tools } from '@stet-go/stet/agents';
import { flaw, textOf } from '../../node_modules/@stet-go/stet/src/toolwords.js';
import { asOwner, closeDatabase, payments } from '../support.js';

const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE });
after(() => Promise.all([closeDatabase(), pool.end()]));

const env = { ...process.env, DATABASE_URL: process.env.STET_DATABASE };
const file = (name) => fileURLToPath(new URL(name, import.meta.url));
const prefix = 'io.github.stet-go/';
const log = () => {};

/** A tool that pays. then is called before it returns. */
function payer(then = () => ({ paid: true }), { key = ({ order }) => order, name = 'pay', scope = 'acct_1' } = {}) {
  return tools({ pool, scope, log })(name, async ({ amount }, { client }) => {
    await client.query('INSERT INTO payments (amount) VALUES ($1)', [amount]);
    return then();
  }, { key });
}

async function refused(promise) {
  const error = await promise.then(() => assert.fail('it was not refused'), (e) => e);
  assert.ok(error instanceof CallRefused, error);
  return error;
}

const named = ({ meta }) => [meta.type.split('#')[1], meta.execution];

test('a business key runs once in each tool', async () => {
  const pay = payer(), refund = payer(undefined, { name: 'refund' }), order = randomUUID();
  assert.deepEqual([await pay({ order, amount: 71001 }), await pay({ amount: 71001, order }), await refund({ order, amount: 71001 })], Array(3).fill({ paid: true }));
  assert.equal(await payments(71001), 2);
  const other = await refused(pay({ order, amount: 71002 }));
  const { rows } = await asOwner(`SELECT encode(stet.stet_id('acct_1', 'pay ${order}'), 'hex') AS id`);
  assert.deepEqual([named(other), other.meta.operation, await payments(71002)], [['mismatch', 'not executed'], rows[0].id, 0]);
});

test('equal calls without a key are not one', async () => {
  const pay = payer(undefined, { key: () => undefined });
  for (let n = 0; n < 2; n++) {
    const error = await refused(pay({ amount: 71003 }));
    assert.deepEqual([named(error), error.meta.operation, await payments(71003)], [['key-missing', 'not executed'], undefined, 0]);
  }
  const ids = [randomUUID(), randomUUID()];
  for (const key of [ids[0], ids[0], ids[1]]) await pay({ amount: 71003 }, { key });
  assert.equal(await payments(71003), 2);
  assert.deepEqual(named(await refused(pay({ amount: 71003 }, { key: 'a key' }))), ['key-invalid', 'not executed']);
});

test('a key function or a scope function that fails refuses the call', async () => {
  for (const key of [({ of }) => of.order, () => '', () => 7, () => 'x'.repeat(513)]) {
    const error = await refused(payer(undefined, { key })({ amount: 71004 }, { key: randomUUID() })); // which is no way out
    assert.deepEqual(named(error), ['key-invalid', 'not executed']);
  }
  for (const [scope, want] of [[() => { throw new Error('no directory'); }, 'scope-failed'], [() => '', 'scope-missing']]) {
    assert.deepEqual(named(await refused(payer(undefined, { scope })({ order: 'o', amount: 71004 }))), [want, 'not executed']);
  }
  assert.equal(await payments(71004), 0);
});

test('an error rolls back, and a PermanentError is stored', async () => {
  const calls = [new Error('later'), new PermanentError('the card was declined'), new Error('a third run')];
  const pay = payer(() => { throw calls.shift(); }), order = randomUUID();
  await assert.rejects(pay({ order, amount: 71005 }), { message: 'later' });
  for (let n = 0; n < 2; n++) {
    const error = await refused(pay({ order, amount: 71005 }));
    assert.deepEqual([error.message, error.retryable, ...named(error)], ['the card was declined', false, 'operation-failed', 'not executed']);
  }
  assert.equal(await payments(71005), 0);
});

test('a second call is still running for the model', async () => {
  const order = randomUUID();
  let found;
  const pay = payer(async () => { found ??= await refused(pay({ order, amount: 71006 })); });
  await pay({ order, amount: 71006 });
  assert.deepEqual([named(found), await payments(71006)], [['in-flight', 'may have executed'], 1]);
  assert.match(found.message, /^Still running: /);
});

test('keys and texts are those of docs/vectors.json', () => {
  const { texts, keys } = JSON.parse(readFileSync(process.env.STET_VECTORS)).tools;
  assert.ok(texts.length > 12 && keys.length > 8);
  for (const { problem, execution, keyed, why, text } of texts) assert.equal(textOf(problem, execution, { keyed, why }), text);
  for (const { key, flaw: want } of keys) assert.equal(flaw(key), want);
});

async function server(t) {
  const client = new Client({ name: 'test', version: '1' });
  t.after(() => client.close());
  await client.connect(new StdioClientTransport({ command: process.execPath, args: [file('server.js')], env }));
  return (amount, key) => client.callTool({ name: 'pay', arguments: { order: 'o-1', amount }, ...(key && { _meta: { [`${prefix}idempotency-key`]: key } }) });
}

test('a tool of a server runs once for a key', { timeout: 120_000 }, async (t) => {
  const pay = await server(t), key = randomUUID();
  const first = await pay(71011, key), retries = [await pay(71011, key), await (await server(t))(71011, key)];
  for (const { _meta, ...same } of retries) assert.deepEqual([_meta, same], [{ [`${prefix}replayed`]: true }, first]);
  const undone = [await pay(13, 'k-13'), await pay(13, 'k-13')];
  for (const [result, problem, words] of [[await pay(71012, key), 'mismatch', /^Not executed: this idempotency key/], [await pay(71012), 'key-missing', /^Not executed: this tool needs/],
    [await pay(71012), 'key-missing', /^Not executed: this tool needs/], [await pay(71012, 'a key'), 'key-invalid', /^Not executed: the idempotency key/], ...undone.map((u) => [u, 'not-executed', /^no luck$/])]) {
    const { type, execution } = result._meta[`${prefix}problem`];
    assert.deepEqual([result.isError, type.split('#')[1], execution], [true, problem, 'not executed']);
    assert.match(result.content[0].text, words);
  }
  assert.match(undone[0].content[1].text, /It is safe to call it again, with the same arguments and the same key in _meta/);
  assert.deepEqual([first.isError, await payments(71011), await payments(71012), await payments(13)], [undefined, 1, 0, 0]);
});

test('the loop of an agent pays once', { timeout: 60_000 }, async () => {
  const order = randomUUID(), [a, b] = [randomUUID(), randomUUID()];
  const calls = [['c1', 'pay', { order, amount: 71021 }], ['c2', 'pay', { order, amount: 71021 }], ['c3', 'pay', { order, amount: 71022 }],
    [a, 'tip', { amount: 71023 }], [a, 'tip', { amount: 71023 }], [b, 'tip', { amount: 71023 }]];
  const child = spawn(process.execPath, [file('agent.js')], { env, stdio: ['pipe', 'pipe', 'inherit'] });
  child.stdin.end(calls.map(([id, name, input]) => JSON.stringify({ id, name, input })).join('\n'));
  let said = '';
  child.stdout.on('data', (chunk) => { said += chunk; });
  const [code] = await once(child, 'close');
  const lines = said.trim().split('\n');
  assert.deepEqual([code, lines.length, lines[0], lines[3]], [0, 6, lines[1], lines[4]], said);
  assert.match(lines[2], /^error: Not executed: this idempotency key was used before/);
  assert.deepEqual(await Promise.all([71021, 71022, 71023].map(payments)), [1, 0, 2]);
});
