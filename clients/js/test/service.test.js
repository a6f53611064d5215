import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { after, test } from 'node:test';
import { change, closeDatabase, charges, lasting, launch, post, proxy, stored } from './support.js';
import { answersLate, charge, frameworks, mode, ofWeb, start } from './service.js';

after(closeDatabase);

for (const framework of frameworks) {
  const it = (name, run) => test(`${framework}: ${name}`, { timeout: 60_000 }, run);
  const serve = async (t, handler = charge, options) => {
    const service = await start(framework, handler, options);
    t.after(service.stop);
    return service;
  };

  it('the first request runs, and a retry gets the same response', async (t) => {
    const { url } = await serve(t, charge, { class: 'payments', name: () => 'pay\n' + 'ä'.repeat(200), ref: () => 'sealed:order 7', tombstone: '40 days', keep: '1 hour' });
    const key = randomUUID();
    const first = await post(url, { key });
    assert.equal(first.status, 201, first.text);
    const { class: kind, name, ref, kept, refused } = await stored(key);
    assert.deepEqual([kind, name, ref, kept, refused], ['payments', 'pay' + 'ä'.repeat(126), 'order 7', '01:00:00', '40 days']);
    assert.equal(first.headers['idempotent-replayed'], undefined);
    const remembered = (Date.parse(first.headers['idempotency-expires']) - Date.now()) / 1000;
    assert.ok(remembered < 40 * 86400 && remembered > 40 * 86400 - 60, `the key is remembered for ${remembered} s`);
    const retry = await post(url, { key });
    assert.deepEqual(lasting(retry), lasting(first));
    assert.deepEqual(retry.headers['idempotent-replayed'], ['true']);
    assert.deepEqual(retry.headers['cache-control'], ['no-store']);
    assert.ok(Date.parse(retry.headers['idempotency-expires']) >= Date.parse(first.headers['idempotency-expires']));
    assert.deepEqual((await post(url, { key: `"${key}";a=1` })).headers['idempotent-replayed'], ['true'], 'quoted it is the same key');
    assert.equal(await charges(key), 1);
    assert.equal((await post(url, { key, account: 'acct_2' })).headers['idempotent-replayed'], undefined, 'a key is never read without its scope');
  });

  it('headers and a binary body are replayed byte for byte', async (t) => {
    const body = randomBytes(100_000);
    const service = await serve(t, ({ reply }) => reply(200, {
      'Content-Type': 'application/octet-stream', 'X-List': ['a', 'b'], 'X-Latin': 'caf\u00e9', 'Set-Cookie': 'session=secret', Vary: 'Accept', 'X-Outer': 'outer', 'Idempotency-Expires': 'of another service',
    }, body));
    const key = randomUUID();
    const first = await post(service.url, { key });
    const retry = await post(service.url, { key });
    assert.deepEqual(first.body, body);
    assert.deepEqual(first.headers['set-cookie'], ['session=secret']);
    delete first.headers['set-cookie'];
    assert.deepEqual(lasting(retry), lasting(first));
    assert.deepEqual(retry.headers['x-list'], ofWeb(framework) ? ['a, b'] : ['a', 'b']);
    assert.ok(Date.parse(first.headers['idempotency-expires']) > Date.now());
    assert.notEqual(retry.headers['idempotency-expires']?.[0], 'of another service');
  });

  it('an empty response is replayed as one', async (t) => {
    const { url } = await serve(t, ({ reply }) => reply(204, { 'X-Done': 'yes' }));
    const key = randomUUID();
    const first = await post(url, { key });
    assert.equal(first.status, 204);
    const retry = await post(url, { key });
    if (ofWeb(framework)) for (const { headers } of [first, retry]) delete headers['content-type']; // the older node-server adds one
    assert.deepEqual(lasting(retry), lasting(first));
  });

  it('a refusal of the handler below 500 stands', async (t) => {
    let calls = 0;
    const { url } = await serve(t, ({ reply }) => { calls++; reply(402, {}, 'no money'); });
    const key = randomUUID();
    for (let i = 0; i < 2; i++) assert.equal((await post(url, { key })).text, 'no money');
    assert.equal(calls, 1);
  });

  it('a request that cannot begin is refused with a problem', async (t) => {
    const { url } = await serve(t, charge, { maxBody: 1000 });
    const key = randomUUID();
    const cases = [
      [{}, 400, 'key-missing'], [{ key: ' ' }, 400, 'key-invalid'], [{ key: 'a,b' }, 400, 'key-invalid'], [{ key: '"a' }, 400, 'key-invalid'],
      [{ key: 'k'.repeat(256) }, 400, 'key-invalid'], [{ headers: { 'Idempotency-Key': ['a', 'b'] } }, 400, framework === 'next' ? 'key-invalid' : 'key-repeated'],
      [{ key, account: '' }, 403, 'scope-missing'], [{ key, account: 'x'.repeat(1025) }, 403, 'scope-too-long'],
      [{ key, body: JSON.stringify({ note: 'x'.repeat(1001) }) }, 413, 'body-too-large'],
    ];
    for (const [request, status, type] of cases) {
      const got = await post(url, request);
      assert.deepEqual([got.status, got.type, got.problem?.execution, got.problem?.status], [status, type, 'not executed', status], got.text);
      assert.deepEqual(got.headers['cache-control'], ['no-store']);
    }
    assert.equal((await post(url, { key })).status, 201);
    const mismatch = await post(url, { key, body: '{"amount":43}' });
    assert.deepEqual([mismatch.status, mismatch.type, mismatch.problem.retryable], [422, 'mismatch', false]);
    assert.equal(await charges(key), 1);
  });

  it('an error rolls back, the framework answers, and the key may be used again', async (t) => {
    let fails = true;
    const { url } = await serve(t, async (request) => {
      if (!fails) return charge(request);
      await charge({ ...request, reply: () => {} });
      throw new Error('no bank');
    });
    const key = randomUUID();
    const failed = await post(url, { key });
    assert.deepEqual([failed.status, failed.headers['x-error'], JSON.parse(failed.text).error], [500, ['app'], 'no bank']);
    assert.equal(failed.headers.location, undefined);
    assert.equal(await charges(key), 0);
    fails = false;
    assert.equal((await post(url, { key })).status, 201);
    assert.equal(await charges(key), 1);
  });

  it('a response of 401, 408, 429, 500 or above rolls back', async (t) => {
    let status;
    const { url } = await serve(t, (request) => charge({ ...request, reply: (_, headers, body) => request.reply(status, headers, body) }));
    const key = randomUUID();
    for (status of [500, 503, 401, 429, 408]) {
      const got = await post(url, { key });
      assert.equal(got.status, status);
      assert.equal(got.headers['idempotency-expires'], undefined, 'it is not stored');
      assert.ok(JSON.parse(got.text).payment, 'this caller gets the response');
      assert.equal(await charges(key), 0);
    }
    status = 200;
    assert.equal((await post(url, { key })).headers['idempotent-replayed'], undefined);
    assert.equal(await charges(key), 1);
  });

  it('while the first runs, a retry gets 409 and another request 422', async (t) => {
    let release, begun;
    const running = new Promise((resolve) => (begun = resolve));
    const { url } = await serve(t, async (request) => {
      begun();
      await new Promise((resolve) => (release = resolve));
      await charge(request);
    });
    const key = randomUUID();
    const first = post(url, { key });
    await running;
    const retry = await post(url, { key });
    assert.deepEqual([retry.status, retry.type, retry.headers['retry-after'], retry.problem.retryable], [409, 'in-flight', ['1'], true]);
    assert.equal((await post(url, { key, body: '{}' })).type, 'mismatch');
    release();
    assert.equal((await first).status, 201);
    assert.equal(await charges(key), 1);
  });

  for (const [way, status] of [['after', 201], ['before', 503], ['held', 201]]) {
    it(`an unacknowledged COMMIT is read again (${way})`, async (t) => {
      const between = await proxy(way);
      t.after(between.close);
      const { url } = await serve(t, charge, { url: between.url });
      const key = randomUUID();
      const first = await post(url, { key });
      assert.ok(between.wasCut());
      assert.equal(first.status, status, first.text);
      assert.equal(first.headers['idempotent-replayed'], undefined, 'it is the first caller');
      if (way === 'before') assert.deepEqual([first.type, first.problem.execution, first.problem.retryable], ['store-unavailable', 'not executed', true]);
      assert.equal(await charges(key), status === 201 ? 1 : 0);
      const retry = await post(url, { key });
      assert.equal(retry.status, 201);
      assert.equal(retry.headers['idempotent-replayed']?.[0], status === 201 ? 'true' : undefined);
      if (status === 201) assert.deepEqual(lasting(retry), lasting(first));
      assert.equal(await charges(key), 1);
    });
  }

  it('a process that is killed in its transaction leaves nothing, and the retry runs at once', async (t) => {
    const [one, two] = await Promise.all([launch(framework, { STET_HANG: 'yes' }), launch(framework)]);
    t.after(() => Promise.all([one.kill(), two.kill()]));
    const key = randomUUID();
    const charged = once(one.child, 'message');
    const cut = post(one.url, { key }).catch((error) => error);
    await charged;
    assert.equal((await post(two.url, { key })).status, 409);
    await one.kill();
    assert.ok((await cut) instanceof Error);
    let retry;
    do retry = await post(two.url, { key }); while (retry.status === 409); // until PostgreSQL has seen the end of the connection
    assert.equal(retry.status, 201);
    assert.equal(retry.headers['idempotent-replayed'], undefined);
    assert.equal(await charges(key), 1);
  });

  it('concurrent duplicates over two processes charge once', async (t) => {
    const processes = await Promise.all([launch(framework), launch(framework)]);
    t.after(() => Promise.all(processes.map(({ kill }) => kill())));
    for (let round = 0; round < 3; round++) {
      const key = randomUUID();
      const answered = await Promise.all(Array.from({ length: 16 }, async (_, i) => {
        for (;;) {
          const got = await post(processes[i % 2].url, { key });
          if (got.status !== 409) return got;
        }
      }));
      for (const got of answered) assert.deepEqual(lasting(got), lasting(answered[0]));
      assert.equal(answered.filter((got) => got.headers['idempotent-replayed'] === undefined).length, 1, 'one has run');
      assert.equal(await charges(key), 1);
    }
  });

  it('a response that is too large to keep reaches the first caller, and leaves a tombstone', async (t) => {
    const { url } = await serve(t, ({ reply }) => reply(200, {}, 'x'.repeat(2000)), { maxResult: 1000 });
    const key = randomUUID();
    assert.equal((await post(url, { key })).body.length, 2000);
    const retry = await post(url, { key });
    assert.deepEqual([retry.status, retry.type, retry.problem.execution], [410, 'result-expired', 'executed']);
  });

  it('a stored operation is answered in each of its states', async (t) => {
    const { url, logged } = await serve(t);
    const cases = [
      ["expires_at = now() - interval '1 s'", 410, 'result-expired', 'executed'],
      ["state = 3, expires_at = now() - interval '1 s'", 410, 'result-expired', 'may have executed'],
      ["state = 5, status = NULL, content_type = NULL, head = NULL, body = NULL, settled_at = NULL, expires_at = NULL, forget_at = NULL", 504, 'outcome-unknown', 'may have executed'],
      ["head = '\\x02'", 500, 'result-unreadable', 'may have executed'],
      ["head = '\\x09'", 500, 'result-unreadable', 'may have executed'],
      ['state = 3, status = NULL, head = NULL', 500, 'operation-failed', 'may have executed'],
    ];
    for (const [what, status, type, execution] of cases) {
      const key = randomUUID();
      assert.equal((await post(url, { key })).status, 201);
      await change(key, what);
      const got = await post(url, { key });
      assert.deepEqual([got.status, got.type, got.problem?.execution], [status, type, execution], what);
      assert.match(status === 504 ? got.problem.operation : '0'.repeat(64), /^[0-9a-f]{64}$/, what);
      assert.deepEqual(got.headers['stet-operation'], status === 504 ? [got.problem.operation] : undefined, what);
      assert.equal(await charges(key), 1);
    }
    assert.equal(logged.length, 2, 'what cannot be read');
    for (const [what, status, text, contentType] of [
      ["status = NULL, head = NULL, content_type = NULL, body = 'x'", 200, 'x', ['application/octet-stream']], ['status = NULL, head = NULL, content_type = NULL, body = NULL', 204, '', undefined],
      ["head = '\\x03' || convert_to('{\"Content-Encoding\": [\"gzip\"]}', 'UTF8')", 201, undefined, undefined],
    ]) {
      const key = randomUUID();
      const first = await post(url, { key });
      await change(key, what);
      const got = await post(url, { key });
      if (ofWeb(framework) && got.status === 204) delete got.headers['content-type'];
      assert.deepEqual([got.status, got.text, got.headers['content-type'], got.headers['idempotent-replayed']], [status, text ?? first.text, text === undefined ? first.headers['content-type'] : contentType, ['true']], what);
      if (text === undefined) assert.equal((await post(url, { key, headers: { 'Accept-Encoding': 'br, *;q=0' } })).type, 'coding-not-acceptable');
    }
  });

  it('where the functions are not there nothing runs', async (t) => {
    const { url, logged } = await serve(t, () => assert.fail('it ran'), { schema: 'no"where' });
    const got = await post(url, { key: randomUUID() });
    assert.deepEqual([got.status, got.type, got.problem.execution, logged.length], [500, 'misconfigured', 'not executed', 1]);
  });

  it('a handler that does not answer is rolled back', async (t) => {
    let left;
    const { url, logged } = await serve(t, async (request) => {
      await charge({ ...request, reply: () => {} });
      await new Promise((resolve) => (left = resolve));
      request.reply(200, {}, 'late');
      await assert.rejects(request.client.query('SELECT 1'), /has ended/);
      left();
    }, { timeout: 1000 });
    const key = randomUUID();
    const got = await post(url, { key });
    assert.deepEqual([got.status, got.type, got.problem.execution], [500, 'response-missing', 'not executed']);
    assert.equal(logged.length, 1);
    const resume = left;
    await new Promise((resolve) => { left = resolve; resume(); });
    assert.equal(await charges(key), 0);
  });

  it('the client writes nothing once the response has ended, nor ends the transaction', async (t) => {
    let client;
    const { url } = await serve(t, async (request) => {
      client = request.client;
      await assert.rejects(client.query('COMMIT'), /not the handler's/);
      await assert.rejects(client.query({ text: ' /* now */ rollback' }), /not the handler's/);
      await client.query('SAVEPOINT a');
      await client.query('ROLLBACK TO SAVEPOINT a');
      await charge(request);
    });
    const key = randomUUID();
    assert.equal((await post(url, { key })).status, 201);
    await assert.rejects(client.query('INSERT INTO charges (key, amount) VALUES ($1, 1)', [key]), /has ended/);
    assert.equal(await charges(key), 1);
  });

  it('a client that leaves does not stop its handler, and its retry gets the response', async (t) => {
    let begun, release;
    const running = new Promise((resolve) => { begun = resolve; });
    const { url } = await serve(t, async (request) => {
      begun();
      await new Promise((resolve) => { release = resolve; });
      await charge(request);
    });
    const key = randomUUID();
    const leaving = new AbortController();
    const left = fetch(`${url}/payments`, { method: 'POST', signal: leaving.signal, body: '{"amount":42}', headers: { 'Content-Type': 'application/json', 'X-Account': 'acct_1', 'Idempotency-Key': key } });
    await running;
    leaving.abort();
    await assert.rejects(left);
    release();
    let retry;
    do retry = await post(url, { key }); while (retry.status === 409);
    assert.deepEqual([retry.status, retry.headers['idempotent-replayed'], await charges(key)], [201, ['true'], 1], retry.text);
  });

  if (framework !== 'fastify') it('a handler that is protected twice is refused, and rolled back', async (t) => {
    const { url, logged } = await serve(t, charge, { twice: true });
    const key = randomUUID();
    for (let n = 0; n < 2; n++) {
      const got = await post(url, { key });
      assert.deepEqual([got.status, got.headers['idempotent-replayed'], await charges(key)], [500, undefined, 0], got.text);
    }
    assert.match(logged[0], /inside a protected handler/);
  });

  it('an option that fails once the handler has run rolls back', async (t) => {
    const { url } = await serve(t, charge, { rollsBack: () => { throw new Error('undecided'); } });
    const key = randomUUID();
    const got = await post(url, { key });
    assert.deepEqual([got.status, got.headers['x-error'], got.headers.location, await charges(key)], [500, answersLate(framework) ? ['app'] : undefined, undefined, 0]);
    if (framework !== 'next') assert.deepEqual(got.headers['x-outer'], ['outer']);
  });

  it('a failed statement with an ignored error rolls everything back', async (t) => {
    const { url } = await serve(t, async (request) => {
      await request.client.query('SELECT 1 / 0').catch(() => {});
      request.reply(200, {}, 'all is well');
    });
    const key = randomUUID();
    const got = await post(url, { key });
    assert.deepEqual([got.status, got.headers['x-error']], [500, answersLate(framework) ? ['app'] : undefined]);
  });

  it('without PostgreSQL nothing runs', async (t) => {
    let calls = 0;
    const { url, logged } = await serve(t, () => { calls++; }, { url: 'postgres://postgres@127.0.0.1:1/none' });
    const got = await post(url, { key: randomUUID() });
    assert.deepEqual([got.status, got.type, got.headers['retry-after'], calls], [503, 'store-unavailable', ['1'], 0]);
    assert.equal(logged.length, 1);
  });

  it('nothing that is logged has a key, a body or a claim', async (t) => {
    const lines = [];
    const log = (...line) => lines.push(line.join(' '));
    const key = randomUUID();
    const secret = 'a secret of the body';
    const type = `text/plain; longer="${'than is stored'.repeat(20)}"`;
    const service = await serve(t, ({ reply }) => reply(200, { 'Content-Type': type }, secret), { log });
    const got = await post(service.url, { key, body: JSON.stringify({ secret }) });
    assert.equal(got.type, 'misconfigured', got.text);
    assert.ok(lines.length > 0);
    for (const line of lines) for (const word of [key, secret, 'c1.']) assert.ok(!line.includes(word), line);
  });
}
