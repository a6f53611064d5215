// Messages that handlers emit, alone and behind the sidecar.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { emit } from '@stet-go/stet';
import { charges, closeDatabase, outbox, post, sidecar } from './support.js';
import { charge, frameworks, start } from './service.js';

after(closeDatabase);

const euro = String.fromCodePoint(0x20ac);

for (const framework of frameworks) {
  const it = (name, run) => test(`${framework}: ${name}`, { timeout: 60_000 }, run);
  const ids = [];
  const telling = async (request) => {
    ids.push(await emit(request.client, { to: 'payments', key: 'acct_1', header: { trace: '7' }, body: { paid: 42, in: euro } }));
    ids.push(await emit(request.client, { to: 'mails', body: 'thank you' }));
    ids.push(await emit(request.client, { to: 'raw', body: new Uint8Array([0, 1, 255]), header: { 'Content-Type': 'application/x-raw' } }));
    ids.push(await emit(request.client, { to: 'empty' }));
    await charge(request);
  };

  it('an emitted message is stored with the outcome', async (t) => {
    const service = await start(framework, telling);
    t.after(service.stop);
    const key = randomUUID();
    ids.length = 0;
    for (let i = 0; i < 2; i++) assert.equal((await post(service.url, { key })).status, 201);
    const got = await outbox(key);
    assert.deepEqual(got.map(({ ID }) => ID), ids);
    assert.deepEqual(got.map(({ To, Key, Header, Body }) => [To, Key, Header, Buffer.from(Body, 'base64').toString('latin1')]), [
      ['payments', 'acct_1', { trace: '7', 'content-type': 'application/json' }, Buffer.from(JSON.stringify({ paid: 42, in: euro })).toString('latin1')],
      ['mails', '', { 'content-type': 'text/plain; charset=utf-8' }, 'thank you'],
      ['raw', '', { 'Content-Type': 'application/x-raw' }, '\x00\x01\xff'],
      ['empty', '', {}, ''],
    ]);
    assert.equal(await charges(key), 1);
  });

  it('messages that are emitted at the same time are stored', async (t) => {
    const service = await start(framework, async (request) => {
      await Promise.all(['a', 'b', 'c'].map((to) => emit(request.client, { to })));
      await charge(request);
    });
    t.after(service.stop);
    const key = randomUUID();
    for (let i = 0; i < 2; i++) assert.equal((await post(service.url, { key })).status, 201);
    assert.deepEqual((await outbox(key)).map(({ To }) => To), ['a', 'b', 'c']);
  });

  it('a message that is refused rolls everything back', async (t) => {
    let late;
    for (const bad of [{ to: '' }, { to: 7 }, { to: 'a', topic: 'b' }, { to: 'a', header: { a: 1 } }, { to: 'a', body: () => {} }, undefined]) {
      const service = await start(framework, async (request) => {
        late = request.client;
        await emit(request.client, { to: 'first' });
        await charge({ ...request, reply: () => {} });
        await emit(request.client, bad);
        request.reply(201, {}, 'paid');
      });
      const key = randomUUID();
      assert.equal((await post(service.url, { key })).status, 500);
      assert.equal(await charges(key), 0);
      await service.stop();
    }
    await assert.rejects(emit(late, { to: 'a' }), /has ended/);
    await assert.rejects(emit({}, { to: 'a' }), /the client that a protected handler is given/);
  });

  it('behind the sidecar it is sent once', async (t) => {
    const got = [];
    const hook = http.createServer(async (req, res) => {
      const chunks = [];
      for await (const chunk of req) chunks.push(chunk);
      got.push([req.headers['message-id'], req.headers['message-to'], Buffer.concat(chunks).toString('latin1')]);
      res.writeHead(204).end();
    });
    hook.listen(0, '127.0.0.1');
    await once(hook, 'listening');
    t.after(() => { hook.closeAllConnections(); hook.close(); });
    const service = await start(framework, telling, { sidecar: true });
    t.after(service.stop);
    const { url } = await sidecar(t, service.url, '', `relay: {retry: 1s, targets: [{by: "http://127.0.0.1:${hook.address().port}/", format: plain}]}\n`);
    const key = randomUUID();
    ids.length = 0;
    for (let i = 0; i < 2; i++) assert.equal((await post(url, { key })).status, 201);
    const ours = () => got.filter(([id]) => ids.includes(id)); // others wait on the same tables
    while (ours().length < 4) await sleep(5); // the test has a time-out
    assert.deepEqual(ours().map(([id]) => id).sort(), [...ids].sort());
    assert.deepEqual(ours().map(([, to]) => to).sort(), ['empty', 'mails', 'payments', 'raw']);
    assert.equal(await charges(key), 1);
  });
}
