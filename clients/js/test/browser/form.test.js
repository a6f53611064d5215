// A form that is submitted, reloaded and submitted again charges once, if the network is cut at any point.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';
import { service } from '../answers.js';
import { points } from '../cutter.js';
import { shop } from '../shop.js';
import { executablePath, launch, outcome, pages, ready, reload, shown, submit, visitWith } from './visit.js';

const forGood = new Set(['before it is connected', 'in the body', 'before the answer', 'in the header of the answer', 'in the body of the answer']);
let browser;

before(async () => { browser = await launch(); });
after(() => browser.close());

const visit = (t, options) => visitWith(browser, t, options);

for (const [name, point] of Object.entries(points)) {
  test(`cut ${name}, reloaded, submitted again in two tabs: one charge`, async (t) => {
    const { open, wire, charges } = await visit(t);
    const page = await open();
    const cut = wire.cut(point);
    await submit(page);
    await cut;
    wire.heal();
    await reload(page);
    const other = await open();
    await Promise.all([submit(page), submit(other)]);
    assert.equal(await shown(page), outcome);
    assert.equal(await shown(other), outcome);
    assert.equal(charges.length, 1, `charged with the keys ${charges}`);
    assert.deepEqual(await page.evaluate(() => window.pending()), []);
  });

  if (!forGood.has(name)) continue;
  test(`cut ${name} permanently: the page reports a possible charge, and has the outcome after the reload`, async (t) => {
    const { open, wire, charges } = await visit(t);
    const page = await open('attempts=3');
    void wire.cut(point);
    await submit(page);
    assert.equal(await shown(page), point.side === 'answer' && point.at({ head: 2, length: 4 }) >= 2 ? 'executed, attempts' : 'may-have-executed, attempts');
    assert.equal((await page.evaluate(() => window.pending())).length, 1);
    wire.heal();
    await reload(page);
    await submit(page);
    assert.equal(await shown(page), outcome);
    assert.equal(charges.length, 1, `charged with the keys ${charges}`);
  });
}

for (const [side, step] of [['answer', 1], ['request', 23]]) {
  test(`cut all along the ${side}: the outcome is whole, and there is one charge`, async (t) => {
    const { open, wire, charges } = await visit(t);
    const page = await open();
    let length = 1;
    for (let at = 0; at < length; at += step) {
      const cut = wire.cut({ side, once: true, at: (whole) => (({ length } = whole), at) });
      const shown = await page.evaluate(([operation]) => window.pay(operation), [`cut-${at}`]);
      await cut;
      assert.equal(shown, `201 {"charge":${charges.length}}`, `behind byte ${at}`);
    }
    assert.ok(length > 140, `it has ${length} bytes`);
    assert.equal(charges.length, Math.ceil(length / step));
    assert.equal(new Set(charges).size, charges.length);
  });
}

test('without a cut, and submitted again after the reload: the outcome is there, and nothing is sent', async (t) => {
  const { open, charges } = await visit(t);
  const page = await open();
  await submit(page);
  assert.equal(await shown(page), outcome);
  await reload(page);
  await submit(page);
  assert.equal(await shown(page), outcome);
  assert.equal(await page.evaluate(() => window.sent), 0);
  assert.equal(charges.length, 1);
});

test('submitted in two tabs at once: one of them sends, once, and both show the outcome', async (t) => {
  const { open, charges } = await visit(t);
  const tabs = [await open(), await open()];
  await Promise.all(tabs.map(submit));
  assert.deepEqual(await Promise.all(tabs.map(shown)), [outcome, outcome]);
  assert.equal(charges.length, 1);
  const sent = await Promise.all(tabs.map((page) => page.evaluate(() => window.sent)));
  assert.deepEqual(sent.sort(), [0, 1]);
});

test('reloaded while the first is in flight: the second submit waits for its outcome', async (t) => {
  const { open, hold, release, charges } = await visit(t);
  const page = await open();
  const arrived = hold();
  await submit(page);
  await arrived;
  await reload(page);
  await submit(page);
  await page.waitForFunction(() => window.sent > 0); // it got: in flight
  release();
  assert.equal(await shown(page), outcome);
  assert.equal(charges.length, 1);
});

test('the page is killed when the answer is there and the journal does not have it: one charge', async (t) => {
  const { open, charges } = await visit(t);
  const page = await open('hold=settle');
  await submit(page);
  await page.waitForFunction(() => document.title === 'held');
  await page.goto('chrome://crash').catch(() => {}); // the process of the page ends
  const next = await open();
  await submit(next);
  assert.equal(await shown(next), outcome);
  assert.equal(await next.evaluate(() => window.answer.replayed), true);
  assert.equal(charges.length, 1);
});

test('the page is killed before it shows the outcome: the next page shows it, without a submit', async (t) => {
  const { open, charges } = await visit(t);
  const page = await open('hold=told');
  await submit(page);
  await page.waitForFunction(() => document.title === 'held');
  await page.goto('chrome://crash').catch(() => {});
  const next = await open('resume');
  assert.equal(await shown(next), outcome);
  assert.equal(await next.evaluate(() => window.sent), 0);
  assert.deepEqual(await next.evaluate(() => window.pending()), []);
  assert.equal(charges.length, 1);
});

test('resume finishes the operation of a reloaded page', async (t) => {
  const { open, wire, charges } = await visit(t);
  const page = await open();
  const cut = wire.cut(points['before the answer']);
  await submit(page);
  await cut;
  await page.close();
  wire.heal();
  const next = await open('resume');
  assert.equal(await shown(next), outcome);
  assert.equal(charges.length, 1);
});

for (const name of ['in the body', 'before the answer', 'in the body of the answer']) {
  test(`on a page without TLS, which has neither locks nor digests, cut ${name}: one charge, also in two tabs`, async (t) => {
    const { open, wire, charges } = await visit(t, { at: (url) => url.replace('127.0.0.1', 'shop.test') });
    const page = await open();
    assert.equal(await page.evaluate(() => isSecureContext || Boolean(navigator.locks || crypto.subtle || crypto.randomUUID)), false);
    const cut = wire.cut(points[name]);
    await submit(page);
    await cut;
    wire.heal();
    await reload(page); // its lease has to run out
    const other = await open();
    await Promise.all([submit(page), submit(other)]);
    assert.equal(await shown(page), outcome);
    assert.equal(await shown(other), outcome);
    assert.equal(charges.length, 1, `charged with the keys ${charges}`);
  });
}

test('without TLS, too, one of two tabs sends', async (t) => {
  const { open, charges } = await visit(t, { at: (url) => url.replace('127.0.0.1', 'shop.test') });
  const tabs = [await open(), await open()];
  await Promise.all(tabs.map(submit));
  assert.deepEqual(await Promise.all(tabs.map(shown)), [outcome, outcome]);
  assert.equal(charges.length, 1);
  const sent = await Promise.all(tabs.map((page) => page.evaluate(() => window.sent)));
  assert.deepEqual(sent.sort(), [0, 1]);
  const dead = (page) => page.evaluate(() => window.leases({ name: 'another', holder: 'a page that was killed', until: Date.now() - 1 }));
  assert.equal(await dead(tabs[0]), 1);
  await submit(tabs[0]);
  await shown(tabs[0]);
  assert.equal(await tabs[0].evaluate(() => window.leases()), 0); // what dead pages leave does not add up
});

test('the network is gone, and comes back: the client sends again at once', async (t) => {
  const { open, context, charges } = await visit(t);
  const page = await open('slow'); // the next attempt is due in 99 seconds
  await context.setOffline(true);
  await submit(page);
  await page.waitForFunction(() => window.sent > 0);
  await context.setOffline(false);
  assert.equal(await shown(page), outcome);
  assert.equal(charges.length, 1);
});

for (const name of ['after the request', 'before the answer', 'in the body of the answer']) {
  test(`cut ${name}, and the whole browser is killed: one charge`, async (t) => {
    const { url, wire, charges } = await shop(t, pages);
    const profile = await mkdtemp(join(tmpdir(), 'stet-profile-'));
    t.after(() => rm(profile, { recursive: true, maxRetries: 20, retryDelay: 100 }));
    const first = await start(t, profile, url);
    const cut = wire.cut(points[name]);
    await submit(first.page);
    await cut;
    await first.kill();
    wire.heal();
    const second = await start(t, profile, url);
    await submit(second.page);
    assert.equal(await shown(second.page), outcome);
    assert.equal(charges.length, 1, `charged with the keys ${charges}`);
    await second.kill();
  });
}

// start starts a browser of its own, which can be killed.
async function start(t, profile, url) {
  const child = spawn(executablePath, ['--headless=new', '--no-sandbox', '--no-first-run', '--disable-gpu', '--password-store=basic', '--remote-debugging-port=0', `--user-data-dir=${profile}`, 'about:blank'],
    { stdio: ['ignore', 'ignore', 'pipe'], detached: true });
  const exited = once(child, 'exit');
  const kill = async () => {
    try {
      process.kill(-child.pid, 'SIGKILL'); // with the processes of its pages
    } catch { /* it is dead */ }
    await exited;
  };
  t.after(kill);
  const endpoint = await new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      const found = /DevTools listening on (ws:\S+)/.exec(line);
      if (found) resolve(found[1]);
    }).on('close', () => reject(new Error('Chromium does not start')));
  });
  const own = await chromium.connectOverCDP(endpoint);
  const page = await own.contexts()[0].newPage();
  page.setDefaultTimeout(20_000);
  await page.goto(`${url}/?`);
  await ready(page);
  return { page, kill };
}

test('the page waits for an operation accepted with 202 by events, over a cut stream and a reload, in two tabs: it runs once', async (t) => {
  const { open, wire } = await visit(t);
  const page = await open();
  const gate = 'in a browser';
  const packing = (tab) => tab.waitForFunction(() => window.progress === 'packing');
  const cut = wire.cut({ side: 'answer', to: 'GET /operations/', once: true, at: ({ head }) => head });
  void page.evaluate((name) => window.order(name), gate).catch(() => {}); // it is reloaded
  await cut;
  await packing(page);
  await reload(page);
  const other = await open();
  const ends = [page, other].map((tab) => tab.evaluate((name) => window.order(name), gate));
  await Promise.race([page, other].map(packing));
  await fetch(`${process.env.STET_ACCEPTING}/gates/${gate}`, { method: 'POST' });
  const outcome = '200 {"parcel":12345678901234567890,"note":"\\"}é"}';
  assert.deepEqual(await Promise.all(ends), [outcome, outcome]);
  assert.equal(await (await fetch(`${process.env.STET_ACCEPTING}/gates/${gate}`)).text(), '1');
});

test('a service of another origin: its CORS headers are obeyed, and the page waits after a 202', async (t) => {
  const { open } = await visit(t);
  const cors = { 'Access-Control-Allow-Origin': '*', 'Access-Control-Allow-Headers': 'Idempotency-Key, Prefer, Last-Event-ID', 'Access-Control-Expose-Headers': 'Idempotent-Replayed, Retry-After, Location' };
  const posts = [];
  const { url } = await service(t, (res, req) => {
    const answer = (status, headers = {}, body = '') => res.writeHead(status, { ...cors, 'Content-Length': body.length, ...headers }).end(body);
    if (req.method === 'OPTIONS') return answer(204);
    if (req.url === '/status') return answer(200, { 'Content-Type': 'application/json' }, '{"state":"completed","outcome":{"status":200,"result":7}}');
    posts.push(req.headers['idempotency-key']);
    if (posts.length === 1) return answer(503, { 'Retry-After': '0' });
    return req.url === '/jobs' ? answer(202, { Location: '/status' }) : answer(201, { 'Idempotent-Replayed': 'true' }, 'paid');
  });
  const page = await open();
  assert.equal(await page.evaluate(([at]) => window.pay('one', at), [`${url}/charges`]), '201 paid');
  assert.equal(await page.evaluate(([at]) => window.pay('two', at), [`${url}/jobs`]), '200 7');
  assert.equal(posts.length, 3);
  assert.equal(posts[0], posts[1]);
});

test('a browser without room for the journal sends nothing', async (t) => {
  const { open, url, context, charges } = await visit(t);
  const page = await open();
  const devtools = await context.newCDPSession(page);
  await devtools.send('Storage.overrideQuotaForOrigin', { origin: url, quotaSize: 1 });
  assert.equal(await page.evaluate(() => window.pay('one')), 'may-have-executed, journal'); // an earlier page may have sent it
  assert.equal(charges.length, 0);
  await devtools.send('Storage.overrideQuotaForOrigin', { origin: url });
  assert.equal(await page.evaluate(() => window.pay('one')), outcome);
});

for (const name of forGood) {
  test(`stet proxy accepts with 202, cut ${name}, reloaded and submitted in two tabs: one charge`, async (t) => {
    const { open, wire, charges } = await visit(t);
    const page = await open('path=/jobs');
    const cut = wire.cut(points[name]);
    await submit(page);
    await cut;
    wire.heal();
    await reload(page);
    const other = await open('path=/jobs');
    await Promise.all([submit(page), submit(other)]);
    assert.equal(await shown(page), outcome);
    assert.equal(await shown(other), outcome);
    assert.equal(charges.length, 1, `charged with the keys ${charges}`);
  });
}

test('the example pays once', async (t) => {
  const lines = (child, stream, pattern) => new Promise((resolve, reject) => {
    createInterface({ input: child[stream] }).on('line', (line) => pattern.test(line) && resolve(/http:\/\/127\.0\.0\.1:\d+/.exec(line)[0])).on('close', () => reject(new Error('it does not listen')));
    t.after(() => child.kill('SIGKILL'));
  });
  const cwd = process.env.STET_EXAMPLE;
  const upstream = await lines(spawn('node', ['server.js'], { cwd, env: { ...process.env, PORT: '0' }, stdio: ['ignore', 'pipe', 'inherit'] }), 'stdout', /listening/);
  const args = ['proxy', '--config', 'stet.yaml', '--upstream', upstream, '--listen', '127.0.0.1:0', '--admin-listen', 'off'];
  const url = await lines(spawn(process.env.STET_PROGRAM, args, { cwd, stdio: ['ignore', 'ignore', 'pipe'] }), 'stderr', /listening/);
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  const press = async () => {
    await page.goto(url);
    await page.locator('button:enabled').click();
    await page.waitForFunction(() => document.querySelector('output').value.includes('paid,'));
    return page.locator('output').textContent();
  };
  assert.equal(await press(), 'checkout-1: paid, number 1.');
  assert.equal(await press(), 'checkout-1: paid, number 1.');
  await page.goto(`${url}/?cart=2`);
  await page.locator('button:enabled').click();
  await page.waitForFunction(() => document.querySelector('output').value === 'checkout-2: paid, number 2.');
});

test('this test can fail: with a journal that a reload forgets there are two charges', async (t) => {
  const { open, wire, charges } = await visit(t);
  const page = await open('forgetful');
  const cut = wire.cut(points['before the answer']);
  await submit(page);
  await cut;
  wire.heal();
  await reload(page);
  await submit(page);
  assert.equal(await shown(page), '201 {"charge":2}');
  assert.equal(charges.length, 2);
});
