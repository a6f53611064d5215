// One call without a framework.

import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { OperationError, PermanentError, emit, operation } from '@stet-go/stet';
import { mode } from './service.js';
import { change, charges, closeDatabase, outbox, proxy, stored } from './support.js';

const kills = process.argv[1] === fileURLToPath(import.meta.url) && process.send !== undefined;
const pool = new pg.Pool({ connectionString: process.env.STET_DATABASE, max: 8 });
pool.on('error', () => {});
const lines = [];
const log = (...line) => lines.push(line.join(' '));
const charge = (op) => op.client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [op.key]);
const call = (key, fn, more = {}, client = pool) => operation(client, { scope: 'acct_1', key, payload: { amount: 42 }, mode, log, ...more }, fn);
const pay = async (op) => { await charge(op); return { paid: 42, at: new Date(0) }; };
const reason = (expected, execution) => (error) => {
  assert.ok(error instanceof OperationError, error.stack);
  assert.deepEqual([error.reason, error.execution], [expected, execution], error.message);
  return true;
};

// As a process: it charges, says so, and waits to be killed.
if (kills) {
  await call(process.argv[2], async (op) => { await charge(op); process.send('charged'); await new Promise(() => setInterval(() => {}, 1000)); });
}

after(async () => { await pool.end(); await closeDatabase(); });

test('a function runs once, and each call has the same value', async () => {
  for (const [client, end] of [[pool, () => {}], await single()]) {
    const key = randomUUID();
    const first = await call(key, pay, { name: 'pay', ref: 'order 7', class: 'payments', keep: '1 hour', tombstone: '40 days' }, client);
    assert.deepEqual(first, { value: { paid: 42, at: '1970-01-01T00:00:00.000Z' }, replayed: false });
    assert.deepEqual(await call(key, () => assert.fail('it ran'), {}, client), { ...first, replayed: true });
    assert.deepEqual(await stored(key), { class: 'payments', name: 'pay', ref: 'order 7', kept: '01:00:00', refused: '40 days' });
    assert.equal(await charges(key), 1);
    assert.equal((await call(key, pay, { scope: 'acct_2' }, client)).replayed, false, 'a key is never read without its scope');
    await end();
  }
});

async function single() {
  const client = new pg.Client({ connectionString: process.env.STET_DATABASE });
  await client.connect();
  return [client, () => client.end()];
}

test('payloads are compared as canonical JSON, text or bytes', async () => {
  const key = randomUUID();
  await call(key, pay, { payload: { a: 1, b: [2] } });
  assert.equal((await call(key, pay, { payload: { b: [2], a: 1 } })).replayed, true);
  for (const payload of [{ a: 1, b: [3] }, '{"a":1,"b":[2]}', undefined, Buffer.from('x')]) await assert.rejects(call(key, pay, { payload }), reason('mismatch', 'not executed'));
  const raw = randomUUID();
  await call(raw, pay, { payload: 'order 7' });
  assert.equal((await call(raw, pay, { payload: Buffer.from('order 7') })).replayed, true);
});

test('a function without a value, and a value that JSON cannot have', async () => {
  const key = randomUUID();
  for (const replayed of [false, true]) assert.deepEqual(await call(key, async (op) => { await charge(op); }), { value: undefined, replayed });
  const wrong = randomUUID();
  await assert.rejects(call(wrong, async (op) => { await charge(op); return () => {}; }), /cannot be written as JSON/);
  assert.equal(await charges(wrong), 0);
});

test('a thrown error undoes the writes, and the next call runs', async () => {
  const key = randomUUID();
  await assert.rejects(call(key, async (op) => { await charge(op); throw new Error('sold out'); }), /^Error: sold out$/);
  assert.equal(await charges(key), 0);
  assert.equal((await call(key, pay)).replayed, false);
  const failed = randomUUID();
  await assert.rejects(call(failed, async (op) => { await charge(op); await op.client.query('SELECT 1 / 0').catch(() => {}); }), /aborted/);
  assert.equal(await charges(failed), 0);
});

test('a permanent error undoes the writes and is stored', async () => {
  const key = randomUUID();
  const refuse = async (op) => { await charge(op); throw new PermanentError('sold out', { details: { left: 0 } }); };
  for (const fn of [refuse, () => assert.fail('it ran')]) {
    await assert.rejects(call(key, fn), (error) => {
      assert.deepEqual([error.message, error.details, error.retryable], ['stet: sold out', { left: 0 }, false]);
      return reason('operation-failed', 'not executed')(error);
    });
  }
  assert.equal(await charges(key), 0);
});

test('while it runs, another call is in flight, and another payload a mismatch', async () => {
  const key = randomUUID();
  let begun, release;
  const running = new Promise((resolve) => { begun = resolve; });
  const first = call(key, async (op) => { begun(); await new Promise((resolve) => { release = resolve; }); return pay(op); });
  await running;
  await assert.rejects(call(key, pay), reason('in-flight', 'may have executed'));
  await assert.rejects(call(key, pay, { payload: 'another' }), reason('mismatch', 'not executed'));
  release();
  assert.equal((await first).replayed, false);
  const key2 = randomUUID();
  await assert.rejects(call(key2, async (op) => { await charge(op); return call(key2, pay); }), reason('in-flight', 'may have executed'), 'nested under one key');
  assert.equal(await charges(key2), 0);
});

test('a function that takes too long is rolled back, and its client writes nothing later', async () => {
  const client = new pg.Client({ connectionString: process.env.STET_DATABASE });
  client.on('error', () => {});
  await client.connect();
  for (const of of [pool, client]) {
    const key = randomUUID();
    let late;
    await assert.rejects(call(key, async (op) => { late = op.client; await charge(op); await sleep(60_000, undefined, { ref: false }); }, { timeout: 200 }, of), reason('response-missing', 'not executed'));
    await assert.rejects(late.query('SELECT 1'), /has ended/);
    assert.equal(await charges(key), 0);
  }
  const key = randomUUID();
  let late;
  await call(key, async (op) => { late = op.client; return pay(op); });
  await assert.rejects(late.query("INSERT INTO charges (key, amount) VALUES ('late', 1)"), /has ended/);
});

test('a client with an open transaction is refused, and that transaction commits nothing of stet', async () => {
  const [client, end] = await single();
  await client.query('BEGIN');
  const key = randomUUID();
  await assert.rejects(call(key, pay, {}, client), (error) => /has a transaction open/.test(error.cause.message) && reason('misconfigured', 'not executed')(error));
  await client.query('ROLLBACK').catch(() => {});
  await end();
  assert.equal(await charges(key), 0);
  assert.equal((await call(key, pay)).replayed, false);
});

for (const [way, replayed, rows] of [['after', false, 1], ['before', undefined, 0], ['held', false, 1]]) {
  test(`an unacknowledged COMMIT is read again (${way})`, async (t) => {
    const between = await proxy(way);
    const through = new pg.Pool({ connectionString: between.url });
    through.on('error', () => {});
    t.after(async () => { between.close(); await through.end(); });
    const key = randomUUID();
    const first = call(key, pay, {}, through);
    if (rows === 0) await assert.rejects(first, reason('store-unavailable', 'not executed'));
    else assert.equal((await first).replayed, replayed);
    assert.ok(between.wasCut());
    assert.equal(await charges(key), rows);
    assert.equal((await call(key, pay)).replayed, rows === 1);
    assert.equal(await charges(key), 1);
  });
}

test('an unacknowledged COMMIT of a single client is unknown, and the next call reads it', async (t) => {
  const between = await proxy('after');
  const client = new pg.Client({ connectionString: between.url });
  client.on('error', () => {});
  await client.connect();
  t.after(() => between.close());
  const key = randomUUID();
  const began = Date.now();
  await assert.rejects(call(key, pay, {}, client), reason('outcome-unknown', 'may have executed'));
  assert.ok(Date.now() - began < 8000, 'it tries no other connection for 10 seconds');
  assert.equal((await call(key, () => assert.fail('it ran'))).replayed, true);
  assert.equal(await charges(key), 1);
});

test('a process that is killed in its function leaves nothing, and the next call runs at once', async () => {
  const key = randomUUID();
  const child = fork(fileURLToPath(import.meta.url), [key], { stdio: 'inherit' });
  await once(child, 'message');
  child.kill('SIGKILL');
  await once(child, 'exit');
  for (;;) {
    const got = await call(key, pay).catch((error) => error);
    if (got.reason === 'in-flight') continue; // until PostgreSQL has seen the end of the connection
    assert.equal(got.replayed, false, got.stack);
    break;
  }
  assert.equal(await charges(key), 1);
});

test('concurrent calls charge once', async () => {
  const key = randomUUID();
  const all = await Promise.all(Array.from({ length: 16 }, async () => {
    for (;;) {
      const got = await call(key, pay).catch((error) => error);
      if (got.reason !== 'in-flight') return got;
    }
  }));
  assert.equal(all.filter(({ replayed }) => !replayed).length, 1, 'one has run');
  for (const { value } of all) assert.deepEqual(value, all[0].value);
  assert.equal(await charges(key), 1);
});

test('messages of a function are stored with its value', async () => {
  const key = randomUUID();
  await call(key, async (op) => { await emit(op.client, { to: 'payments', body: { paid: 42 } }); return pay(op); });
  assert.deepEqual((await outbox(key)).map(({ To }) => To), ['payments']);
});

test('outcomes of other adapters, discarded and unreadable ones', async () => {
  for (const [what, expected, execution] of [
    ["expires_at = now() - interval '1 s'", 'result-expired', 'executed'],
    ["head = '\\x09'", 'result-unreadable', 'may have executed'],
    ["status = 201, content_type = 'text/plain'", 'result-unreadable', 'executed'],
    ['state = 3, status = 500, content_type = NULL, body = NULL', 'operation-failed', 'may have executed'],
    ['state = 5, status = NULL, content_type = NULL, head = NULL, body = NULL, settled_at = NULL, expires_at = NULL, forget_at = NULL', 'outcome-unknown', 'may have executed'],
  ]) {
    const key = randomUUID();
    await call(key, pay);
    await change(key, what);
    await assert.rejects(call(key, pay), reason(expected, execution), what);
  }
  const large = randomUUID();
  assert.equal((await call(large, async (op) => { await charge(op); return 'x'.repeat(2000); }, { maxResult: 1000 })).value.length, 2000);
  await assert.rejects(call(large, pay), reason('result-expired', 'executed'));
});

test('without PostgreSQL, without tables and with wrong options nothing runs', async () => {
  const ran = () => assert.fail('it ran');
  const dead = new pg.Pool({ connectionString: 'postgres://postgres@127.0.0.1:1/none' });
  await assert.rejects(call(randomUUID(), ran, {}, dead), reason('store-unavailable', 'not executed'));
  await assert.rejects(call(randomUUID(), ran, { schema: 'nowhere' }), reason('misconfigured', 'not executed'));
  for (const [more, message] of [[{ key: '' }, /option key/], [{ scope: '\ud800' }, /option scope/], [{ ref: 'sealed:x' }, /sealed:/], [{ keys: 1 }, /no option keys/], [{ name: 'a\n' }, /option name/], [{ payload: () => {} }, /payload/], [{ timeout: -1 }, /timeout/]]) {
    await assert.rejects(call('k', ran, more), message);
  }
  await assert.rejects(operation({}, { scope: 'a', key: 'b' }, ran), /Pool or a Client/);
  await assert.rejects(operation(pool, { scope: 'a', key: 'b' }), /needs a function/);
});

test('no logged line has a key, a payload or a claim', async () => {
  lines.length = 0;
  const key = randomUUID();
  await call(key, () => 'secret result', { payload: 'secret payload' });
  assert.match(lines.join(), /never used its client/);
  await call(randomUUID(), pay, { schema: 'nowhere' }).catch(() => {});
  for (const line of lines) for (const word of [key, 'secret', 'c1.']) assert.ok(!line.includes(word), line);
});

test('bytes of each type are compared, and a value that JSON writes as {} is refused', async () => {
  const key = randomUUID(), bytes = (text) => new TextEncoder().encode(text);
  await call(key, pay, { payload: bytes('one').buffer });
  for (const payload of ['one', bytes('one'), new DataView(bytes('one').buffer)]) assert.equal((await call(key, pay, { payload })).replayed, true);
  await assert.rejects(call(key, pay, { payload: bytes('two').buffer }), reason('mismatch', 'not executed'));
  for (const payload of [new Map([['amount', 1]]), { in: new Set([1]) }, new Blob(['x'])]) await assert.rejects(call(randomUUID(), pay, { payload }), /TypeError: stet: the option payload has a/);
  const lost = randomUUID();
  await assert.rejects(call(lost, async (op) => { await charge(op); return new Map(); }), /TypeError: stet: the result of the function has a Map/);
  assert.equal(await charges(lost), 0);
  assert.deepEqual((await call(randomUUID(), async (op) => { await charge(op); return { none: {}, list: [], bare: Object.create(null) }; }, { payload: {} })).value, { none: {}, list: [], bare: {} });
});

test('an outcome that is no JSON in spite of its type is unreadable', async () => {
  const key = randomUUID();
  await call(key, pay);
  await change(key, "body = '\\x1f8b08'");
  await assert.rejects(call(key, pay), reason('result-unreadable', 'executed'));
});

test('a Client runs its operations one after the other, and refuses one in an open transaction, also without warnings', async (t) => {
  const client = new pg.Client({ connectionString: process.env.STET_DATABASE, options: '-c client_min_messages=error' });
  await client.connect();
  t.after(() => client.end());
  const keys = [1, 2, 3].map(() => randomUUID());
  const done = await Promise.all(keys.map((key, i) => call(key, async (op) => { await sleep(10 * (3 - i)); return pay(op); }, {}, client)));
  assert.deepEqual(done.map(({ replayed }) => replayed), [false, false, false]);
  assert.deepEqual(await Promise.all(keys.map(async (key) => [(await call(key, pay, {}, client)).replayed, await charges(key)])), keys.map(() => [true, 1]));
  const inside = randomUUID();
  await client.query('BEGIN');
  await client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [inside]);
  await assert.rejects(call(randomUUID(), pay, {}, client), reason('misconfigured', 'not executed'));
  await client.query('ROLLBACK');
  assert.equal(await charges(inside), 0);
});
